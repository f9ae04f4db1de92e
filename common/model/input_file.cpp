/// @file
/// See input_file.h.
#include "common/model/input_file.h"

#include <fmt/format.h>

#include <system_error>

#include "common/error.h"

namespace kvcache {

namespace fs = std::filesystem;

bool has_entry(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none)
    throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  return status.type() != fs::file_type::not_found;
}

bool has_entry_ending_in(const fs::path& folder, const fs::path& extension) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == extension) return true;
  return false;
}

void require_regular_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    const fs::path target = fs::read_symlink(path, error);
    throw InputError(
        error ? fmt::format("{}: no such file", path.string())
              : fmt::format("{}: no such file, this is a link to {}", path.string(), target.string()));
  }
  if (!fs::exists(status)) throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  if (!fs::is_regular_file(status)) throw InputError(fmt::format("{}: not a regular file", path.string()));
}

}  // namespace kvcache
