/// @file
/// The files of a checkpoint folder before they are read: which are there, and why one cannot be opened.
/// Chapter: step 1.
#pragma once

#include <filesystem>

namespace kvcache {

/// Whether a folder has an entry of this name; a link that leads nowhere is one too. Only a name that is not
/// in the folder counts as absent, so that a file that somebody meant to be read is never passed over.
/// @throws InputError "<path>: <the system's reason>" where the system does not tell, as in a folder that may
/// not be entered.
[[nodiscard]] bool has_entry(const std::filesystem::path& path);

/// @throws InputError "<path>: <reason>" unless `path` leads to a regular file: nothing is there, the link
/// leads nowhere or in a circle, a folder on the way may not be entered, or it is a folder, pipe or device.
void require_regular_file(const std::filesystem::path& path);

}  // namespace kvcache
