/// @file
/// The GPU that a program runs on: finding it, its one compute stream, and how a failed CUDA call becomes an
/// error of ours. Chapter: step 3.
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
/// Owns a stream. Work of one stream runs in order; work of two is ordered by events only.
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

/// Lets `later` go on only when what is in `earlier` now is done. The host does not wait.
void wait_for(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event);

/// The first GPU.
class Device {
 public:
  /// Why there is none that this build can use, in one line; empty: there is one.
  static std::string why_unavailable();
  /// Whether there is a driver and it does not say that it has no GPU; whether that can be used is another
  /// matter.
  static bool is_expected();

  /// @throws RunError, one line, if there is no GPU or no driver.
  Device();

  /// As the driver says it: "NVIDIA H100 80GB HBM3".
  const std::string& name() const { return name_; }
  int compute_capability() const { return compute_capability_; }  ///< 90 is 9.0
  /// Bytes that nothing holds now.
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
