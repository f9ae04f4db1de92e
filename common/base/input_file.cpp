/// @file
/// See input_file.h.
#include "common/base/input_file.h"

#include <fmt/format.h>

#include <system_error>

#include "common/base/error.h"

namespace kvcache {

namespace fs = std::filesystem;

bool has_entry(const std::filesystem::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none)
    throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  return status.type() != fs::file_type::not_found;
}

void require_regular_file(const std::filesystem::path& path) {
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
