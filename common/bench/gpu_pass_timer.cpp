/// @file
/// See gpu_pass_timer.h.
#include "common/bench/gpu_pass_timer.h"

#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace kvcache {

#ifdef WITH_CUDA

struct GpuPassTimer::Events {
  const cuda::Device& device;
  std::vector<cuda::Event> recorded;  // [2 * passes] before and after each

  void record() {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreate(&event), "making a CUDA event");
    recorded.emplace_back(event);
    cuda::check(cudaEventRecord(event, device.stream()), "recording a CUDA event");
  }
};

GpuPassTimer::GpuPassTimer(const Program& program) {
  if (program.gpu) events_.reset(new Events{*program.gpu, {}});
}

void GpuPassTimer::listen(RunSettings& settings) {
  if (!events_) return;
  settings.before_pass = settings.after_pass = [this] { events_->record(); };
}

std::vector<double> GpuPassTimer::pass_ms() const {
  std::vector<double> passes;
  if (!events_) return passes;
  events_->device.synchronize();
  for (std::size_t n = 0; n + 1 < events_->recorded.size(); n += 2) {
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, events_->recorded[n].get(), events_->recorded[n + 1].get()),
                "timing the GPU");
    passes.push_back(ms);
  }
  return passes;
}

#else

struct GpuPassTimer::Events {};
GpuPassTimer::GpuPassTimer(const Program&) {}
void GpuPassTimer::listen(RunSettings&) {}
std::vector<double> GpuPassTimer::pass_ms() const {
  return {};
}

#endif

GpuPassTimer::~GpuPassTimer() = default;

}  // namespace kvcache
