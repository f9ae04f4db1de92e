/// @file
/// The workloads of every step's benchmarks: requests of made-up ids, and the part of their time that is
/// measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/engine/run.h"

namespace kvcache {

/// The first decode passes of a run, which are not timed. In the first pass buffers grow. On a GPU the second
/// pass of a kind is recorded as a CUDA graph, and later ones are replayed (recorded_passes.h).
constexpr std::ptrdiff_t kUntimedDecodePasses = 2;

/// Requests that go through one run together, in an empty cache.
struct Workload {
  /// Which part of the time counts (timed_ms).
  enum class Timed : std::uint8_t { first_token, decode_pass, all, all_first_tokens };

  std::string name;         ///< of the benchmark
  std::int64_t prompt;      ///< tokens of each prompt
  std::int64_t sequences;   ///< how many requests
  std::int64_t tokens;      ///< new tokens of each
  Timed timed;              ///< the part that is reported
  std::int64_t shared = 0;  ///< tokens that all prompts begin with
  bool warm = false;        ///< an untimed request computes the shared tokens first
  bool on_gpu = false;      ///< timed on a GPU alone: a CPU would take minutes
};

/// All workloads, those of one kind from small to large.
std::vector<Workload> workloads();

/// The requests of a workload. Their prompts begin with the shared tokens and differ from the next token on.
std::vector<Request> requests_of(const Workload& workload, std::int64_t vocab_size);

/// The untimed request of a warm workload: the shared tokens and nothing else.
Request request_before(const Workload& workload, std::int64_t vocab_size);

/// The tokens of each sequence that a timed pass attends to, on average.
double context_of(const Workload& workload);

/// The milliseconds of a workload's timed part. decode_pass: the median of the passes without the first
/// kUntimedDecodePasses.
/// @param prefill_ms  [sequences]
/// @param decode_ms   [decode passes]
/// @return 0 if no pass of that kind was timed
double timed_ms(Workload::Timed timed, std::span<const double> prefill_ms, std::span<const double> decode_ms);

}  // namespace kvcache
