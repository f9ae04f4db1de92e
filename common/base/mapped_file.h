/// @file
/// Maps a file into memory, and prints one line on stderr if the file shrinks while it is read. Chapter:
/// step 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace kvcache {

/// The bytes of a whole file, read-only. Copies share the mapping, which ends with the last copy.
struct MappedFile {
  std::shared_ptr<const std::byte> bytes;  ///< `size` bytes
  std::uint64_t size = 0;                  ///< of the file when it was mapped
};

/// Maps a regular file of at least `least` bytes.
/// @throws InputError "<path>: <reason>": it does not exist, is not a regular file, is unreadable, or is
/// shorter than `least`; `short_of_what` then says what is too short.
/// @throws RunError when the program has no address space left for it.
[[nodiscard]] MappedFile map_file(const std::filesystem::path& path, std::uint64_t least,
                                  const char* short_of_what);

/// From now on, if another process cuts a mapped file short or its disk fails, a line on stderr names the
/// file before SIGBUS ends this process. (Overwriting the file with one of the same size goes unnoticed: the
/// pages are then the new ones.)
void explain_lost_pages();

}  // namespace kvcache
