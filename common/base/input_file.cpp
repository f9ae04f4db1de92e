/// @file
/// See input_file.h.
#include "common/base/input_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <ios>
#include <iterator>
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

std::string read_whole_file(const std::filesystem::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw InputError(fmt::format("{}: this is a folder", path.string()));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(fmt::format("{}: {}", path.string(), std::strerror(errno)));
  try {
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    throw InputError(fmt::format("{}: cannot be read to its end", path.string()));
  }
}

void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view beginning) {
  // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
  if (!beginning.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw InputError(
      fmt::format("{}: this is a Git LFS pointer, not the file itself; fetch the file with: git lfs pull",
                  path.string()));
}

}  // namespace kvcache
