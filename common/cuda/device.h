/// @file
/// The GPU that a program runs on: how it is found, its compute stream, and how a failed CUDA call becomes a
/// RunError. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// @throws RunError "`what`: ..." with CUDA's own words if `status` is an error.
void check(cudaError_t status, const char* what);

/// Gives a stream back.
struct StreamDeleter {
  /// Called by Stream.
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
/// Owns a stream. Work of one stream runs in order; events alone order the work of two streams.
using Stream = std::unique_ptr<CUstream_st, StreamDeleter>;
/// A stream that does not wait for the default stream.
/// @throws RunError if CUDA gives none.
Stream make_stream();

/// Gives an event back.
struct EventDeleter {
  /// Called by Event.
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
/// Owns an event without a time stamp: a point in one stream that another can wait for.
using Event = std::unique_ptr<CUevent_st, EventDeleter>;
/// @throws RunError if CUDA gives none.
Event make_event();

/// Holds `later` back until the work that is in `earlier` now is done. The host does not wait.
void wait_for(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event);

/// Limits of the first GPU that decide how a kernel is launched.
struct GpuLimits {
  int multiprocessors = 0;  ///< how many the GPU has
  int shared_bytes = 0;     ///< the most bytes of shared memory that a thread block can have

  /// Asks CUDA at the first call. @throws RunError if CUDA does not say.
  static const GpuLimits& get();
};

/// The first GPU.
class Device {
 public:
  /// Why this build can use no GPU here, in one line; empty if it can.
  static std::string why_unavailable();
  /// Whether a driver is installed that does not report "no GPU". Whether the GPU can be used, only
  /// why_unavailable() says.
  static bool is_expected();

  /// @throws RunError, one line, if there is no GPU or no driver.
  Device();

  /// The driver's name for it, as "NVIDIA H100 80GB HBM3".
  const std::string& name() const { return name_; }
  int compute_capability() const { return compute_capability_; }  ///< 90 is 9.0
  /// Bytes that are free now.
  std::int64_t free_memory() const;
  /// Bytes of the GPU's memory.
  std::int64_t total_memory() const;
  /// bf16 where the GPU computes in it, else f16.
  DType default_dtype() const { return compute_capability_ >= 80 ? DType::bf16 : DType::f16; }
  /// @throws RunError for bf16 on a GPU that does not compute in it.
  void check_dtype(DType dtype) const;

  /// Where all kernels of a pass run, in order.
  cudaStream_t stream() const { return stream_.get(); }
  /// Waits until the stream is empty.
  void synchronize() const;

 private:
  std::string name_;
  int compute_capability_ = 0;
  Stream stream_;
};

}  // namespace kvcache::cuda
