/// @file
/// A trace of traffic: which requests came when, how long they were, and which of them began alike. No text
/// is in it. The format is that of the traces published with Mooncake (Qin et al., FAST 2025); a server
/// writes it with --log-trace. Described in docs/replay.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "common/engine/token_ids.h"

namespace kvcache {

/// One request of a trace.
struct TrafficRequest {
  std::int64_t timestamp_ms = 0;   ///< of its arrival, since that of the first one
  std::int64_t input_length = 0;   ///< tokens of its prompt, at least 1
  std::int64_t output_length = 0;  ///< tokens generated for it
  /// [blocks] one number for each block of its prompt, the last one partial. Of two requests, equal numbers
  /// at one place mean equal tokens up to there.
  std::vector<std::int32_t> blocks = {};
  std::int64_t line = 0;  ///< of the file that it was read from, counted from 1; 0: of none

  /// Tokens whose K and V it needs at its end: the last output never goes through the model.
  std::int64_t tokens_to_store() const { return input_length + (output_length > 0 ? output_length - 1 : 0); }
};

/// All requests of a trace.
struct Traffic {
  std::int64_t block_size = 512;              ///< tokens for each number of TrafficRequest::blocks
  std::vector<TrafficRequest> requests = {};  ///< in the order of their arrival

  /// Made-up ids of the prompt of request `index`, [input_length]: equal where the trace's blocks are equal,
  /// different where they differ.
  TokenIds prompt_ids(std::size_t index) const;
  /// The id that stands for every output of request `index`: in no prompt and in no other output.
  std::int32_t output_id(std::size_t index) const;
};

/// The most days from the first request to the last: memory is sampled every second.
inline constexpr int kMostDays = 31;

/// Whether requests come within more than kMostDays. @param ms  from the first of them to the last
bool lasts_too_long(double ms);

/// Reads a trace: JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, a list of
/// whole numbers below 2^64; other fields are ignored. Lines of later requests may stand first, and
/// timestamps may count from any time.
/// @param name        of the source, for messages
/// @param block_size  tokens for each of the hash ids
/// @throws InputError "<name>, line 3: ..." for the first line that is wrong, and for a trace without lines.
[[nodiscard]] Traffic read_traffic(std::istream& lines, const std::string& name, std::int64_t block_size);

/// As above, from a file or a pipe.
/// @throws InputError for one that cannot be read, too.
[[nodiscard]] Traffic read_traffic_file(const std::filesystem::path& path, std::int64_t block_size);

/// One line of a trace, with its newline.
std::string line_of(const TrafficRequest& request);

}  // namespace kvcache
