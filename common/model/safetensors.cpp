/// @file
/// Maps a safetensors file and checks its header before any tensor is read. Each check relies on the ones
/// before it: sizes, then the text, then each tensor, then the layout of all tensors. Format:
/// https://github.com/huggingface/safetensors
#include "common/model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"
#include "common/base/mapped_file.h"

namespace kvcache {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the data of a safetensors file is little-endian");

constexpr std::uint64_t length_bytes = 8;
/// The limit of the format's own implementation.
constexpr std::uint64_t max_header_bytes = 100'000'000;

struct KnownType {
  std::string_view name;
  std::uint64_t bits;
};
/// Every type of the format. weights.cpp decides which of them can be weights.
constexpr std::array<KnownType, 22> known_types{{
    {"BOOL", 8},        {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},    {"U32", 32},
    {"I32", 32},        {"U64", 64},    {"I64", 64},    {"F16", 16},    {"BF16", 16},   {"F32", 32},
    {"F64", 64},        {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};

/// A tensor of the header, before all checks are done. Offsets count from the start of the data.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Throws errors that name the file and, if made by `about`, the tensor.
class Complaint {
 public:
  explicit Complaint(const std::filesystem::path& path) : where_(path.string()) {}
  Complaint about(const std::string& tensor) const {
    Complaint narrower = *this;
    narrower.where_ += ": tensor " + shown(tensor);
    return narrower;
  }
  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& problem) const { throw InputError(where_ + ": " + problem); }

 private:
  std::string where_;
};

/// The header's text, which lies wholly inside the file.
std::string_view header_text(const MappedFile& mapping, const Complaint& complaint) {
  std::uint64_t length;
  std::memcpy(&length, mapping.bytes.get(), sizeof length);
  if (length > max_header_bytes)
    complaint.fail(fmt::format("the header length {} is more than the {} that the format allows", length,
                               max_header_bytes));
  if (length > mapping.size - length_bytes)
    complaint.fail(fmt::format("truncated: the header should have {} bytes, the file has {} in all", length,
                               mapping.size));
  const std::string_view text(reinterpret_cast<const char*>(mapping.bytes.get()) + length_bytes, length);
  if (!text.starts_with('{')) complaint.fail("not a safetensors file: the header does not start with '{'");
  return text;
}

void check_metadata(const json& metadata, const Complaint& complaint) {
  if (!metadata.is_object()) complaint.fail("__metadata__ must be an object of strings");
  for (const auto& [key, value] : metadata.items())
    if (!value.is_string())
      complaint.fail(
          fmt::format("__metadata__ field {} is {}; it must be a string", shown(key), shown(value)));
}

/// A list of whole numbers from 0 to 2^63 - 1.
std::vector<std::int64_t> read_counts(const json& list, const char* field, const Complaint& complaint) {
  const bool fits =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const json& number) {
        return number.is_number_unsigned() &&
               number.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
      });
  if (!fits)
    complaint.fail(fmt::format("{} is {}; it must be a list of whole numbers from 0 to {}", field,
                               shown(list), std::numeric_limits<std::int64_t>::max()));
  return list.get<std::vector<std::int64_t>>();
}

/// Bits that a tensor of this shape takes; nothing if they do not fit 64 bits.
std::optional<std::uint64_t> bits_of(const std::vector<std::int64_t>& shape, std::uint64_t bits_each) {
  std::uint64_t bits = bits_each;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return std::nullopt;
  return bits;
}

/// Checks one tensor by itself: its fields have the right types, and its offsets span the bytes that its
/// shape needs.
Entry read_entry(const std::string& name, const json& fields, const Complaint& complaint) {
  if (!fields.is_object())
    complaint.fail(fmt::format("{}; it must be an object with dtype, shape and data_offsets", shown(fields)));
  for (const auto& [field, value] : fields.items())
    if (field != "dtype" && field != "shape" && field != "data_offsets")
      complaint.fail(fmt::format("unknown field {}", shown(field)));
  for (const char* field : {"dtype", "shape", "data_offsets"})
    if (!fields.contains(field)) complaint.fail(fmt::format("{} is missing", field));

  const json& dtype = fields["dtype"];
  const auto* const type = std::find_if(known_types.begin(), known_types.end(), [&](const KnownType& known) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == known.name;
  });
  if (type == known_types.end()) complaint.fail(fmt::format("unknown dtype {}", shown(dtype)));

  Entry entry{name, std::string(type->name), read_counts(fields["shape"], "shape", complaint)};
  const auto offsets = read_counts(fields["data_offsets"], "data_offsets", complaint);
  if (offsets.size() != 2)
    complaint.fail(fmt::format("data_offsets is {}; it must be [begin, end]", shown(fields["data_offsets"])));
  if (offsets[1] < offsets[0])
    complaint.fail(fmt::format("data_offsets {} end before they begin", shown(offsets)));
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);

  const auto bits = bits_of(entry.shape, type->bits);
  if (!bits) complaint.fail(fmt::format("shape {} overflows", shown(entry.shape)));
  if (*bits % 8 != 0)
    complaint.fail(fmt::format("{} {} is not a whole number of bytes", entry.dtype, shown(entry.shape)));
  if (entry.end - entry.begin != *bits / 8)
    complaint.fail(fmt::format("data_offsets {} span {} bytes, but {} {} takes {}", shown(offsets),
                               entry.end - entry.begin, entry.dtype, shown(entry.shape), *bits / 8));
  return entry;
}

/// Checks that all tensors together cover the data exactly once, as the format demands.
void check_layout(std::vector<Entry>& entries, std::uint64_t data_bytes, const Complaint& complaint) {
  std::sort(entries.begin(), entries.end(), [](const Entry& left, const Entry& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const Complaint about = complaint.about(entry.name);
    if (entry.end > data_bytes)
      about.fail(fmt::format("data_offsets [{},{}] run out of the file, which has {} bytes of data",
                             entry.begin, entry.end, data_bytes));
    if (entry.begin < covered)
      about.fail(fmt::format("data_offsets [{},{}] overlap the tensor before, which ends at {}", entry.begin,
                             entry.end, covered));
    if (entry.begin > covered)
      about.fail(fmt::format("data_offsets [{},{}] leave a hole: the tensor before ends at {}", entry.begin,
                             entry.end, covered));
    covered = entry.end;
  }
  if (covered != data_bytes)
    complaint.fail(fmt::format("{} bytes at the end belong to no tensor", data_bytes - covered));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  const Complaint complaint(path);
  const MappedFile mapping =
      map_file(path, length_bytes, "a safetensors file, which starts with 8 bytes of header length");
  refuse_lfs_pointer(path, {reinterpret_cast<const char*>(mapping.bytes.get()), mapping.size});
  const std::string_view text = header_text(mapping, complaint);
  const json header = parse_json(text, complaint.where() + ": header");

  std::vector<Entry> entries;
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__")
      check_metadata(fields, complaint);
    else
      entries.push_back(read_entry(name, fields, complaint.about(name)));
  }
  const std::uint64_t data_begin = length_bytes + text.size();
  check_layout(entries, mapping.size - data_begin, complaint);

  mapping_ = mapping.bytes;
  for (Entry& entry : entries)
    tensors_[entry.name] = {std::move(entry.dtype), std::move(entry.shape),
                            mapping_.get() + data_begin + entry.begin,
                            static_cast<std::int64_t>(entry.end - entry.begin)};
}

}  // namespace kvcache
