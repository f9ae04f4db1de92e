/// @file
/// One safetensors file, mapped and checked. Format: 8 bytes little-endian header length, a JSON header, the
/// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvcache {

/// One tensor of a mapped file. `data` points into the mapping, need not be aligned, and stays valid as long
/// as the SafetensorsFile it came from.
struct StoredTensor {
  std::string dtype;                ///< as the file spells it: "F32", "F16", "BF16", "I64", ...
  std::vector<std::int64_t> shape;  ///< row major; rank 0 is one number
  const std::byte* data = nullptr;  ///< `bytes` bytes
  std::int64_t bytes = 0;           ///< of all its numbers together
};

/// A memory-mapped safetensors file with a checked header: whatever the file contains, no later access
/// through this object leaves the file. (If another process cuts the mapped file short, this process ends
/// with SIGBUS, see mapped_file.h; replace checkpoint files, do not rewrite them.) Copies share the mapping.
class SafetensorsFile {
 public:
  /// Maps and checks `path`. All types of the format are accepted, also those that cannot be weights.
  /// @throws InputError naming the file and, where there is one, the tensor: truncated or oversized header,
  /// JSON that does not parse, duplicate names, unknown dtype, negative or overflowing shapes, offsets that
  /// overlap, leave holes, run out of the file or do not match shape x dtype.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// The path it was opened with.
  const std::filesystem::path& path() const { return path_; }
  /// The tensors of the file by name. Their data stays valid as long as this object or a copy lives.
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace kvcache
