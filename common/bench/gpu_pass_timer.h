/// @file
/// How long a GPU itself works on each pass of a run, beside the wall times of the run's report.
#pragma once

#include <memory>
#include <vector>

#include "common/cli/program.h"

namespace kvcache {

/// Records a CUDA event in the GPU's stream before and after each pass. Between the two lie all kernels of
/// the forward pass and the gaps in which the GPU waits for the host to launch them; the bookkeeping before
/// them and the choice of ids after them are left out.
class GpuPassTimer {
 public:
  /// Without a GPU it times nothing.
  explicit GpuPassTimer(const Program& program);
  ~GpuPassTimer();
  GpuPassTimer(const GpuPassTimer&) = delete;
  GpuPassTimer& operator=(const GpuPassTimer&) = delete;

  /// Lets a run with these settings tell of its passes. The timer must outlive the run.
  void listen(RunSettings& settings);
  /// [passes] ms in order, once the run is over; empty without a GPU.
  std::vector<double> pass_ms() const;

 private:
  struct Events;  // of CUDA
  std::unique_ptr<Events> events_;
};

}  // namespace kvcache
