/// @file
/// Checks of input files before they are read: does it exist, why can it not be opened, is it a Git LFS
/// pointer. Chapter: step 1.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvcache {

/// Whether a folder has an entry of this name. A link that leads nowhere is an entry too. Only a name that is
/// not in the folder counts as absent, so that no file that should be read is passed over.
/// @throws InputError "<path>: <the system's reason>" if the system does not tell, as in a folder that may
/// not be entered.
[[nodiscard]] bool has_entry(const std::filesystem::path& path);

/// Checks that `path` leads to a regular file.
/// @throws InputError "<path>: <reason>" if nothing is there, if a link leads nowhere or in a circle, if a
/// folder on the way may not be entered, or if it is a folder, pipe or device.
void require_regular_file(const std::filesystem::path& path);

/// All bytes of a file, a pipe or a device.
/// @throws InputError "<path>: <reason>" for a folder, and for a file that cannot be opened or read to its
/// end.
[[nodiscard]] std::string read_whole_file(const std::filesystem::path& path);

/// Refuses a Git LFS pointer: in a clone without Git LFS, a text of three lines stands in the place of each
/// large file.
/// @param beginning  the first bytes of the file, at least 64 or all
/// @throws InputError naming the file and the remedy, for a pointer.
void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view beginning);

}  // namespace kvcache
