/// @file
/// Decode passes of the same kind, recorded once and played as CUDA graphs. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace kvcache::cuda {

/// A decode pass starts five to ten kernels per layer, and the host takes longer to start one than most of
/// them run. A CUDA graph starts all of them at once. It fixes the arguments of every kernel, so a recording
/// may be played for another pass only if that pass has the same addresses and sizes; the contents of memory
/// may differ. Equal keys say that the pass has the same sizes in the same store. No buffer has moved as long
/// as nothing was allocated on the GPU, so an allocation ends all recordings.
class RecordedPasses {
 public:
  /// Queues `work` in `stream`. The first call with a key calls `work`, the second records and plays it,
  /// later ones play the recording.
  /// @param key  stands for the sizes and addresses that `work` gives to kernels; empty: always call `work`
  void run(std::span<const std::int64_t> key, cudaStream_t stream, const std::function<void()>& work);

 private:
  struct Deleter {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Deleter>;
  struct Recording {
    bool seen = false;  ///< a pass with this key has run
    Graph graph;        ///< made of the second one
  };
  static Graph record(cudaStream_t stream, const std::function<void()>& work);

  std::map<std::vector<std::int64_t>, Recording> recordings_;
  std::int64_t allocations_ = 0;  ///< allocations() when the recordings were made
};

}  // namespace kvcache::cuda
