/// @file
/// Files that are named from outside before they are read: which are there, why one cannot be opened, and
/// which stand for another. Chapter: step 1.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvcache {

/// Whether a folder has an entry of this name; a link that leads nowhere is one too. Only a name that is not
/// in the folder counts as absent, so that a file that somebody meant to be read is never passed over.
/// @throws InputError "<path>: <the system's reason>" where the system does not tell, as in a folder that may
/// not be entered.
[[nodiscard]] bool has_entry(const std::filesystem::path& path);

/// @throws InputError "<path>: <reason>" unless `path` leads to a regular file: nothing is there, the link
/// leads nowhere or in a circle, a folder on the way may not be entered, or it is a folder, pipe or device.
void require_regular_file(const std::filesystem::path& path);

/// All bytes of a file, a pipe or a device.
/// @throws InputError "<path>: <reason>" for a folder, and for what cannot be opened or read to its end.
[[nodiscard]] std::string read_whole_file(const std::filesystem::path& path);

/// A clone without Git LFS has a pointer, a text of three lines, in the place of each large file.
/// @param beginning  the first bytes of the file, 64 or more where it has them
/// @throws InputError naming the file and the remedy, for a pointer.
void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view beginning);

}  // namespace kvcache
