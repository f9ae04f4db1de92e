/// @file
/// Passes of a kind that comes again and again, played as CUDA graphs. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace kvcache::cuda {

/// A decode pass starts some ten kernels per layer, and starting one takes the host longer than most of them
/// run. A graph of them is started at once. What a kernel is given is fixed when it is recorded, so a
/// recording can be played for another pass only if that would give every kernel the same addresses and
/// sizes; the contents of memory may differ. The key of a pass says so; and no buffer may have moved, which
/// is certain as long as nothing was allocated.
class RecordedPasses {
 public:
  /// Queues `work` in `stream`: calls it, or plays what an earlier call with the same key has queued.
  /// @param key  of the sizes and addresses that `work` gives to kernels; empty: always call it
  void run(std::span<const std::int64_t> key, cudaStream_t stream, const std::function<void()>& work);

 private:
  struct Deleter {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Deleter>;
  struct Recording {
    bool seen = false;  ///< a pass of this key has run
    Graph graph;        ///< of the second one
  };
  static Graph record(cudaStream_t stream, const std::function<void()>& work);

  std::map<std::vector<std::int64_t>, Recording> recordings_;
  std::int64_t allocations_ = 0;  ///< when they were made
};

}  // namespace kvcache::cuda
