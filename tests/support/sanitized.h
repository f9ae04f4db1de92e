/// @file
/// Whether a test runs under a sanitizer. A sanitizer reserves terabytes of address space, so no program
/// starts under `ulimit -v`; and it opens files of its own.
#pragma once

namespace kvcache {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace kvcache
