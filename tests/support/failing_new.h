/// @file
/// An operator new of which one call fails, on one thread. It replaces the library's in a whole program, so
/// one source file of a test includes it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

inline thread_local bool may_fail = false;     ///< set on the thread whose allocations are counted
inline std::atomic<bool> others_fail = false;  ///< instead, those of all other threads are counted,
inline thread_local bool is_spared = false;    ///< but not of those on which this is set
inline std::atomic<int> fails_in = -1;  ///< its allocations before the one that fails; below 0: none fails

// Not inlined: a compiler that inlines them takes them for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  const bool counts = others_fail ? !may_fail && !is_spared : may_fail;
  const bool fails = counts && fails_in >= 0 && fails_in-- == 0;
  void* const memory = fails ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// The library and the address sanitizer have operators of their own; their memory would come back to ours.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
