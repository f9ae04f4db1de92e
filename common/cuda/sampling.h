/// @file
/// Choosing token ids on the GPU: the same ids as Sampler::pick (model/sampler.h) for the same logits, so
/// that a pass sends home a few ids instead of megabytes of logits. Chapter: step 3.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/model/dtype.h"
#include "common/model/sampler.h"

namespace kvcache::cuda {

/// Which kernel finds the largest logit. `plain` is for tests and benchmarks: one thread block per row.
enum class ArgMaxKernel : std::uint8_t { automatic, plain };

/// Makes the picks of a pass. Its buffers stay where they are as long as they need not grow.
class PickIds {
 public:
  /// @param kernel  used for calls whose picks are all greedy; others always take the fast one
  explicit PickIds(ArgMaxKernel kernel = ArgMaxKernel::automatic);
  ~PickIds();

  /// Takes the memory that calls with up to `picks` picks need, so that none has to be found while a program
  /// runs. With sampling it is up to 70 MB, or what a single pick needs if that is more: 12 bytes per id.
  /// @param sampling  not all picks are greedy
  /// @throws RunError if the GPU or the host has not enough.
  void reserve(std::int64_t picks, std::int64_t vocab, bool sampling);

  /// Lets each pick's sampler choose an id from its row. The host waits for `stream`, once.
  /// @param logits  [rows, vocab] on the GPU, rows `stride` numbers apart
  /// @return [picks] ids
  /// @throws RunError as Sampler::pick does, for the first pick whose row has no largest finite logit. Unlike
  ///   there, the samplers of the picks after it have then taken their draw too.
  std::vector<std::int32_t> operator()(DType dtype, const void* logits, std::int64_t stride,
                                       std::int64_t vocab, std::span<const Pick> picks, cudaStream_t stream);

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
  ArgMaxKernel kernel_;
};

}  // namespace kvcache::cuda
