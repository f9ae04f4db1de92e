/// @file
/// Shared by the tests of the GPU. Without a GPU they are skipped, and say so.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/cuda/device.h"
#include "common/cuda/memory.h"

namespace kvcache {

/// A test that needs a GPU.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda::Device::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    device_ = std::make_shared<cuda::Device>();
  }

  const cuda::Device& device() const { return *device_; }
  const std::shared_ptr<const cuda::Device>& shared_device() const { return device_; }
  cudaStream_t stream() const { return device_->stream(); }
  /// Whether the GPU computes in this type.
  bool has(DType dtype) const { return dtype != DType::bf16 || device_->compute_capability() >= 80; }

  /// A copy of the numbers on the GPU.
  template <typename T>
  cuda::DeviceBuffer<T> on_gpu(const std::vector<T>& numbers) const {
    cuda::DeviceBuffer<T> buffer(std::max<std::int64_t>(1, std::ssize(numbers)), "a test");
    cuda::check(cudaMemcpyAsync(buffer.data(), numbers.data(), numbers.size() * sizeof(T),
                                cudaMemcpyHostToDevice, stream()),
                "copying to the GPU");
    device_->synchronize();
    return buffer;
  }
  /// `count` numbers of the GPU's memory, after the stream is done.
  template <typename T>
  std::vector<T> from_gpu(const T* data, std::int64_t count) const {
    std::vector<T> numbers(static_cast<std::size_t>(count));
    cuda::check(
        cudaMemcpyAsync(numbers.data(), data, numbers.size() * sizeof(T), cudaMemcpyDeviceToHost, stream()),
        "copying from the GPU");
    device_->synchronize();
    return numbers;
  }

 private:
  std::shared_ptr<const cuda::Device> device_;
};

}  // namespace kvcache
