/// @file
/// Chooses token ids on the GPU, the same as Sampler::pick (common/model/sampler.h) for the same logits. So a
/// pass sends a few ids to the host instead of megabytes of logits. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/cuda/memory.h"
#include "common/model/sampler.h"

namespace kvcache::cuda {

/// Makes the picks of a pass. Its buffers move only when they grow. With sampled picks they take
/// most_bytes(): 8 bytes per id of the vocabulary for each of up to 128 picks.
class PickIds {
 public:
  /// Each pick's sampler chooses an id from its row. The host waits for `stream`, once.
  /// @param logits  [rows, vocab] on the GPU, rows `stride` numbers apart
  /// @return [picks] as Sampler::pick; a row that gives no id leaves the others alone
  /// @throws RunError if the GPU or the host has not enough memory.
  std::vector<Picked> operator()(DType dtype, const void* logits, std::int64_t stride, std::int64_t vocab,
                                 std::span<const Pick> picks, cudaStream_t stream);

  /// The most bytes of the GPU's memory that sampling `picks` ids takes.
  static std::int64_t most_bytes(std::int64_t vocab, std::int64_t picks);

 private:
  Upload<std::int64_t> rows_;               // [picks]
  Upload<Draw> draws_;                      // [picks]
  DeviceBuffer<std::uint64_t> found_;       // [picks]
  PinnedBuffer<std::uint64_t> found_here_;  // [picks] the same, for the host
  DeviceBuffer<std::uint64_t> weights_;     // [picks that are sampled at a time, vocab]
};

}  // namespace kvcache::cuda
