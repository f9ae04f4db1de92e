/// @file
/// Reads JSON from outside strictly: every fault is an InputError of one line that names the file. Used for
/// config.json, generation_config.json, tokenizer.json, the shard index and the header of safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvcache {

/// Parses `text`; messages call it `source`. Stricter than the JSON libraries, it refuses
/// - a field given twice, because nobody can tell which of the two was meant,
/// - nesting beyond 64 levels, NUL bytes, and numbers beyond double,
/// - more than four million values: twice the largest tokenizer.json. Each value takes about a hundred bytes,
/// so this bounds the memory.
/// @throws InputError "<source>: ..." with the place in the text.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& source);

/// Checks that no value of `text` is nested beyond 64 levels: the library prints and compares values by
/// recursion, so deeper ones end the program. For files whose other rules are looser than those of
/// `parse_json`.
/// @throws InputError "<source>: ..." with the place in the text.
void refuse_deep_nesting(std::string_view text, const std::string& source);

/// Reads and parses a whole file of at most `max_bytes`. The default, 100 MB, is three times the largest
/// tokenizer.json.
/// @throws InputError naming the file: missing, not a regular file, unreadable, too large, a Git LFS pointer,
/// or not JSON.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path,
                                            std::uintmax_t max_bytes = 100'000'000);

/// `value` as messages show it: JSON on one line, in ASCII, cut after about a hundred characters.
[[nodiscard]] std::string shown(const nlohmann::json& value);

}  // namespace kvcache
