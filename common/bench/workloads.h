/// @file
/// What the benchmarks of every step run: requests of made-up ids, and which part of their time is measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/engine/run.h"

namespace kvcache {

/// Decode passes of a run that warm it up: buffers grow in the first. On a GPU a pass of a new kind runs as
/// it is once, is recorded as a CUDA graph the second time, and from then on it is played
/// (recorded_passes.h).
constexpr std::ptrdiff_t kUntimedDecodePasses = 2;

/// Requests that go through the run loop together, in an empty cache.
struct Workload {
  /// Which part of the time counts: `timed_ms`.
  enum class Timed : std::uint8_t { first_token, decode_pass, all, all_first_tokens };

  std::string name;         ///< of the benchmark
  std::int64_t prompt;      ///< tokens of each prompt
  std::int64_t sequences;   ///< how many
  std::int64_t tokens;      ///< new tokens of each
  Timed timed;              ///< what is reported
  std::int64_t shared = 0;  ///< tokens that all prompts begin with
  bool warm = false;        ///< another request has computed these tokens before; its time does not count
};

/// All workloads, those of one kind from small to large.
std::vector<Workload> workloads();

/// The prompts begin with the shared tokens; what follows differs from the first token on.
std::vector<Request> requests_of(const Workload& workload, std::int64_t vocab_size);

/// What a warm workload's cache has seen before: the shared tokens and nothing else.
Request request_before(const Workload& workload, std::int64_t vocab_size);

/// Tokens of each sequence that a measured pass attends to, on average.
double context_of(const Workload& workload);

/// The milliseconds that a workload is about. decode_pass: the median, without the
/// first kUntimedDecodePasses.
/// @param prefill_ms  [sequences]
/// @param decode_ms   [decode passes]
/// @return 0 if no pass of that kind has run
double timed_ms(Workload::Timed timed, std::span<const double> prefill_ms, std::span<const double> decode_ms);

}  // namespace kvcache
