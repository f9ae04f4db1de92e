// Passes that are replayed as CUDA graphs: when a pass may be replayed, and that a replay changes no result.
#include "common/cuda/recorded_passes.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/gpu.h"

namespace kvcache {
namespace {

class CudaRecordedPasses : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    // Device memory for the whole test, because an allocation would end all recordings.
    numbers_ = cuda::DeviceBuffer<std::uint32_t>(kCount, "a test");
    device().synchronize();
  }

  /// A pass that fills the numbers from `first` on with `value`, and counts how often it is called.
  void fill(std::span<const std::int64_t> key, std::int64_t first, int value) {
    recorded_.run(key, stream(), [&] {
      ++calls_;
      cuda::check(cudaMemsetAsync(numbers_.data() + first, value,
                                  static_cast<std::size_t>(kCount - first) * sizeof(std::uint32_t), stream()),
                  "a test");
    });
  }
  std::vector<std::uint32_t> numbers() const { return from_gpu(numbers_.data(), kCount); }

  static constexpr std::int64_t kCount = 4;
  cuda::RecordedPasses recorded_;
  cuda::DeviceBuffer<std::uint32_t> numbers_;
  int calls_ = 0;
};

TEST_F(CudaRecordedPasses, TheThirdPassOfAKeyIsPlayedAndNotCalled) {
  const std::int64_t key[] = {7, 1};
  for (int pass = 0; pass < 5; ++pass) fill(key, 0, 1 + pass);
  EXPECT_EQ(calls_, 2);
  // The recording holds the kernels that the second pass queued.
  EXPECT_EQ(numbers(), std::vector<std::uint32_t>(kCount, 0x02020202));
}

TEST_F(CudaRecordedPasses, EveryKeyHasItsOwnRecording) {
  const std::int64_t one[] = {1}, two[] = {2}, longer[] = {1, 2};
  for (int pass = 0; pass < 3; ++pass) {
    fill(one, 0, 1);
    fill(two, 1, 2);
    fill(longer, 2, 3);
  }
  EXPECT_EQ(calls_, 6);
  EXPECT_EQ(numbers(), (std::vector<std::uint32_t>{0x01010101, 0x02020202, 0x03030303, 0x03030303}));
}

TEST_F(CudaRecordedPasses, APassWithoutAKeyIsAlwaysCalled) {
  for (int pass = 0; pass < 4; ++pass) fill({}, 0, 1 + pass);
  EXPECT_EQ(calls_, 4);
  EXPECT_EQ(numbers(), std::vector<std::uint32_t>(kCount, 0x04040404));
}

TEST_F(CudaRecordedPasses, AnAllocationEndsAllRecordings) {
  const std::int64_t key[] = {1};
  for (int pass = 0; pass < 3; ++pass) fill(key, 0, 1);
  const cuda::DeviceBuffer<std::uint32_t> more(kCount, "a test");
  fill(key, 0, 5);
  EXPECT_EQ(calls_, 3);
  EXPECT_EQ(numbers(), std::vector<std::uint32_t>(kCount, 0x05050505));
}

TEST_F(CudaRecordedPasses, APassThatFailsWhileItIsRecordedLeavesTheStreamUsable) {
  const std::int64_t key[] = {1};
  fill(key, 0, 1);
  EXPECT_THROW(recorded_.run(key, stream(), [] { throw std::runtime_error("a test"); }), std::runtime_error);
  fill(key, 0, 2);
  EXPECT_EQ(numbers(), std::vector<std::uint32_t>(kCount, 0x02020202));
}

TEST_F(CudaRecordedPasses, SoManyKindsOfPassesThatRecordingsAreDroppedAreStillRight) {
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t kind = 0; kind < 300; ++kind)
      fill({&kind, 1}, kind % kCount, static_cast<int>(kind % 251));
  }
  EXPECT_EQ(numbers()[3], 0x01010101U * (299 % 251));
}

}  // namespace
}  // namespace kvcache
