/// @file
/// The GPU's own time for each pass of a run, beside the wall times of the run's report. A host's clock
/// around `forward` would measure the queueing alone: the GPU is still computing when `forward` returns.
#pragma once

#include <memory>
#include <vector>

#include "common/cli/program.h"

namespace kvcache {

/// Records a CUDA event in the GPU's stream before and after each pass. The time between the two contains all
/// kernels of the forward pass, and the gaps in which the GPU waits for the host to launch them. The
/// bookkeeping before them and the choice of ids after them are left out.
class GpuPassTimer {
 public:
  /// Without a GPU the timer does nothing.
  explicit GpuPassTimer(const Program& program);
  ~GpuPassTimer();
  GpuPassTimer(const GpuPassTimer&) = delete;
  GpuPassTimer& operator=(const GpuPassTimer&) = delete;

  /// Makes a run with these settings call the timer at each pass. The timer must outlive the run.
  void listen(RunSettings& settings);
  /// [passes] ms in order, for a run that is over; empty without a GPU.
  std::vector<double> pass_ms() const;

 private:
  struct Events;  // CUDA events
  std::unique_ptr<Events> events_;
};

}  // namespace kvcache
