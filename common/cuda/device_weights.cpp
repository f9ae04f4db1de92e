/// @file
/// See device_weights.h.
#include "common/cuda/device_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cuda/kernels.h"
#include "common/cuda/memory.h"

namespace kvcache::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;        // bytes
constexpr std::int64_t kPieceBytes = 64 << 20;  // converted at a time

std::int64_t numbers_of(const Weight& weight) {
  return weight.present() ? weight.rows * weight.cols : 0;
}

/// All weights in the order of their places in memory. Those of a group follow each other without a gap.
std::vector<std::vector<Weight*>> groups_of(Weights& weights) {
  std::vector<std::vector<Weight*>> groups{{&weights.embedding}};
  for (LayerWeights& layer : weights.layers) {
    groups.push_back({&layer.attention_norm});
    groups.push_back({&layer.q.weight, &layer.k.weight, &layer.v.weight});
    groups.push_back({&layer.q.bias, &layer.k.bias, &layer.v.bias});
    for (Weight* weight : {&layer.q_norm, &layer.k_norm, &layer.o.weight, &layer.o.bias, &layer.mlp_norm})
      groups.push_back({weight});
    groups.push_back({&layer.gate.weight, &layer.up.weight});
    groups.push_back({&layer.gate.bias, &layer.up.bias});
    for (Weight* weight : {&layer.down.weight, &layer.down.bias}) groups.push_back({weight});
  }
  groups.push_back({&weights.final_norm});
  groups.push_back({&weights.lm_head});
  return groups;
}

/// Copies one weight to `to` on the GPU, converting piece by piece where the types differ.
void upload(const Weight& from, DType dtype, std::byte* to, DeviceBuffer<std::byte>& piece,
            const Device& device) {
  const std::int64_t count = numbers_of(from), from_size = size_of(from.dtype);
  if (from.dtype == dtype) {
    check(cudaMemcpyAsync(to, from.data, static_cast<std::size_t>(count * from_size), cudaMemcpyHostToDevice,
                          device.stream()),
          "copying the weights to the GPU");
    return;
  }
  piece.reserve(kPieceBytes, "the conversion of the weights");
  const std::int64_t at_a_time = kPieceBytes / from_size;
  for (std::int64_t first = 0; first < count; first += at_a_time) {
    const std::int64_t numbers = std::min(at_a_time, count - first);
    check(cudaMemcpyAsync(piece.data(), from.data + first * from_size,
                          static_cast<std::size_t>(numbers * from_size), cudaMemcpyHostToDevice,
                          device.stream()),
          "copying the weights to the GPU");
    convert(from.dtype, piece.data(), dtype, to + first * size_of(dtype), numbers, device.stream());
  }
}

}  // namespace

Weights upload_weights(const Weights& weights, DType dtype, const Device& device) {
  Weights result = weights;
  const bool tied = weights.lm_head.data == weights.embedding.data;
  if (tied) result.lm_head = {};  // one copy is enough

  const auto aligned = [](std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  const std::vector<std::vector<Weight*>> groups = groups_of(result);
  std::int64_t bytes = 0;
  for (const std::vector<Weight*>& group : groups) {
    for (const Weight* weight : group) bytes += numbers_of(*weight) * size_of(dtype);
    bytes = aligned(bytes);
  }

  const std::shared_ptr<void> memory = allocate_device(bytes, "the weights");
  DeviceBuffer<std::byte> piece;
  std::int64_t at = 0;
  for (const std::vector<Weight*>& group : groups) {
    for (Weight* weight : group) {
      if (!weight->present()) continue;
      std::byte* to = static_cast<std::byte*>(memory.get()) + at;
      upload(*weight, dtype, to, piece, device);
      at += numbers_of(*weight) * size_of(dtype);
      weight->data = to;
      weight->dtype = dtype;
    }
    at = aligned(at);
  }
  device.synchronize();
  if (tied) result.lm_head = result.embedding;
  result.owner = memory;
  return result;
}

}  // namespace kvcache::cuda
