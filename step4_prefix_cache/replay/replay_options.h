/// @file
/// The command line of `replay`: which trace, which model and machine, what to vary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/model/config.h"
#include "common/replay/made_traffic.h"
#include "common/replay/replay.h"

namespace kvcache {

/// What --sweep varies, from the first value to the last, each twice the one before.
struct Sweep {
  /// What it varies.
  enum class Of : std::uint8_t { kv_memory, rate };
  Of of = Of::kv_memory;  ///< the size of each pool, or how fast requests come
  double first = 0;       ///< bytes, or a factor of the trace's own times
  double last = 0;        ///< not below `first`

  /// The values, in order.
  std::vector<double> values() const;
};

/// The line, checked. Each field is the option of its name.
struct ReplayOptions {
  std::filesystem::path trace;              ///< the file; empty with `make`
  std::int64_t trace_block = 512;           ///< tokens for each hash id
  std::string shape;                        ///< the model's name
  ModelConfig model;                        ///< of --shape, or of --model
  DType dtype = DType::bf16;                ///< of weights, K and V
  std::int64_t kv_memory = 40'000'000'000;  ///< bytes of K and V of each engine
  std::optional<std::int64_t> num_blocks;   ///< instead of kv_memory
  std::int64_t block_size = 16;             ///< tokens per block; divides trace_block
  std::int64_t host_memory = 0;             ///< bytes of step 4's host tier
  std::int64_t max_sequences = 256;         ///< running at a time
  std::int64_t max_batch_tokens = 2048;     ///< rows of a pass at most
  std::optional<std::int64_t> max_seq_len;  ///< of step 2's reservations; none: the trace's longest request
  std::string card = "h100";                ///< whose roofline is the cost of a pass
  std::filesystem::path cost;               ///< a fitted cost instead; empty: none
  std::int64_t engines = 1;                 ///< behind one router
  Router router = Router::least_loaded;     ///< which of them gets a request
  std::optional<Sweep> sweep;               ///< a table of several replays
  std::optional<double> slo_ms;             ///< how many engines keep it
  bool serial = false;                      ///< one request after the other, nothing generated
  bool json = false;                        ///< the report as one JSON object
  bool makes = false;                       ///< --make: write a made-up trace, and replay nothing
  MadeTraffic make;                         ///< that trace: --make, --requests, --longest, --seed

  /// The cost of a pass.
  PassCost pass_cost() const;
  /// Bytes of K and V of one token.
  std::int64_t bytes_per_token() const;
  /// Bytes of K and V of each engine's pool.
  std::int64_t pool_bytes() const;
};

/// Parses the line. --help prints on stdout and returns nothing.
/// @throws InputError with one line: the option, its value, and what would be right.
std::optional<ReplayOptions> parse_replay_options(int argc, const char* const* argv);

}  // namespace kvcache
