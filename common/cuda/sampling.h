/// @file
/// Choosing token ids on the GPU: the same ids as Sampler::pick (model/sampler.h) for the same logits, so
/// that a pass sends home a few ids instead of megabytes of logits. Chapter: step 3.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/cuda/memory.h"
#include "common/model/sampler.h"

namespace kvcache::cuda {

/// Makes the picks of a pass. Its buffers stay where they are as long as they need not grow; with sampled
/// picks they take most_bytes(): 8 bytes per id of the vocabulary for each of up to 128.
class PickIds {
 public:
  /// Lets each pick's sampler choose an id from its row. The host waits for `stream`, once.
  /// @param logits  [rows, vocab] on the GPU, rows `stride` numbers apart
  /// @return [picks] as Sampler::pick: a row that gives no id does not touch the others
  /// @throws RunError if the GPU or the host has not enough memory.
  std::vector<Picked> operator()(DType dtype, const void* logits, std::int64_t stride, std::int64_t vocab,
                                 std::span<const Pick> picks, cudaStream_t stream);

  /// The GPU's memory, in bytes, that sampling `picks` ids of a vocabulary takes at most.
  static std::int64_t most_bytes(std::int64_t vocab, std::int64_t picks);

 private:
  Upload<std::int64_t> rows_;               // [picks]
  Upload<Draw> draws_;                      // [picks]
  DeviceBuffer<std::uint64_t> found_;       // [picks]
  PinnedBuffer<std::uint64_t> found_here_;  // [picks] the same, for the host
  DeviceBuffer<std::uint64_t> weights_;     // [picks that are sampled at a time, vocab]
};

}  // namespace kvcache::cuda
