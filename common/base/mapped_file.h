/// @file
/// A file in memory, and one line on stderr where it shrinks while it is read. Chapter: step 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace kvcache {

/// The bytes of a whole file, read-only. Copies share the mapping; it ends with the last of them.
struct MappedFile {
  std::shared_ptr<const std::byte> bytes;  ///< `size` bytes
  std::uint64_t size = 0;                  ///< of the file when it was mapped
};

/// Maps a regular file of at least `least` bytes.
/// @throws InputError "<path>: <reason>": not there, not a regular file, unreadable, or shorter than `least`,
/// which `short_of_what` then explains.
[[nodiscard]] MappedFile map_file(const std::filesystem::path& path, std::uint64_t least,
                                  const char* short_of_what);

/// From now on a mapped file that another process cuts short, or that its disk does not give back, ends this
/// process with a line on stderr that names the file, and then with SIGBUS as before. (A file of the same
/// size written over it goes unnoticed: the pages are simply the new ones.)
void explain_lost_pages();

}  // namespace kvcache
