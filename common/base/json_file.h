/// @file
/// JSON that comes from outside, read so that nothing in it can surprise: every fault is an InputError of one
/// line that names the file. Used for config.json, generation_config.json, tokenizer.json, the shard index
/// and the header of safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvcache {

/// Parses `text`; `source` is how messages name it. Stricter than the JSON libraries: a field given twice is
/// refused (which of the two was meant, nobody can tell), as are nesting beyond 64 levels, NUL bytes and
/// numbers beyond double. More than four million values are refused as well: twice as many as the largest
/// tokenizer.json has, and the bound on memory, of which each value takes about a hundred bytes.
/// @throws InputError "<source>: ..." with the place in the text.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& source);

/// Reads and parses a whole file of at most `max_bytes`; without it 100 MB, three times the largest
/// tokenizer.json.
/// @throws InputError naming the file: missing, not a regular file, unreadable, too large, a Git LFS pointer,
/// or not JSON.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path,
                                            std::uintmax_t max_bytes = 100'000'000);

/// `value` as messages show it: JSON on one line, in ASCII, cut after about a hundred characters.
[[nodiscard]] std::string shown(const nlohmann::json& value);

}  // namespace kvcache
