/// @file
/// What serve-bench measures for a replay: the cost of a pass (--cost), of made-up passes
/// or of those of a trace; and what comes of a trace that is served for real (--traffic). Described in
/// docs/replay.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cli/program.h"

namespace kvcache {

/// What is asked for, instead of all other measurements.
struct ForReplay {
  std::string cost;                ///< the file to write; empty: none
  std::string traffic;             ///< the trace to serve; empty: none
  std::int64_t trace_block = 512;  ///< tokens for each of its hash ids
  /// Rows of a pass at most; none: as in a server, 64 on the CPU and 256 on CUDA.
  std::optional<std::int64_t> max_batch_tokens = {};

  /// Whether anything is asked for.
  bool is_given() const { return !cost.empty() || !traffic.empty(); }
};

/// Takes these options, with their values, out of a command line.
/// @throws InputError for one without its value, or with a wrong one.
ForReplay take_options_for_replay(std::vector<char*>& line);

/// Measures what is asked for.
/// @param tokens  of K and V in the pool in which a trace is served
/// @throws InputError for a file that cannot be read or written, or a request that is too long.
void measure(Program& program, const ForReplay& asked, std::int64_t tokens);

}  // namespace kvcache
