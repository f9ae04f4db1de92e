/// @file
/// See recorded_passes.h.
#include "common/cuda/recorded_passes.h"

#include "common/cuda/device.h"
#include "common/cuda/memory.h"

namespace kvcache::cuda {

void RecordedPasses::run(std::span<const std::int64_t> key, cudaStream_t stream,
                         const std::function<void()>& work) {
  if (key.empty()) return work();
  constexpr std::size_t kMost = 256;  // recordings; with more kinds of passes, each would seldom be played
  if (allocations_ != allocations() || recordings_.size() > kMost) {
    check(cudaStreamSynchronize(stream), "waiting for the GPU");  // no recording is being played
    recordings_.clear();
    allocations_ = allocations();
  }
  Recording& recording = recordings_[{key.begin(), key.end()}];
  if (!recording.seen) {  // the first of a kind may allocate, and may stay the only one
    recording.seen = true;
    return work();
  }
  if (!recording.graph) recording.graph = record(stream, work);
  check(cudaGraphLaunch(recording.graph.get(), stream), "starting a CUDA graph");
}

RecordedPasses::Graph RecordedPasses::record(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a CUDA graph");
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &recorded);  // else the stream would go on recording
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    throw;
  }
  check(cudaStreamEndCapture(stream, &recorded), "recording a CUDA graph");
  cudaGraphExec_t graph = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  check(status, "making a CUDA graph");
  return Graph(graph);
}

}  // namespace kvcache::cuda
