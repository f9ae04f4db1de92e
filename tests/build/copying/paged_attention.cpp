// One sequence of 5 tokens in blocks of 4, attended on the GPU. docs/copying.md builds it from copied files.
#include <array>
#include <cstdio>
#include <exception>
#include <vector>

#include "common/cuda/attention.h"
#include "common/cuda/scatter.h"
#include "step3_paged/cuda_gather.h"

using namespace kvcache;

template <typename T>
cuda::DeviceBuffer<T> on_gpu(const std::vector<T>& numbers) {
  cuda::DeviceBuffer<T> buffer(static_cast<std::int64_t>(numbers.size()), "an example");
  cuda::check(cudaMemcpy(buffer.data(), numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice),
              "copying to the GPU");
  return buffer;
}

int main() try {
  const cuda::Device device;
  const std::int64_t tokens = 5, width = 8;  // one KV head of 8 numbers
  const std::vector<std::int32_t> table{2, 0};
  const std::vector<std::int64_t> slots{8, 9, 10, 11, 0};  // block_id * 4 + offset
  std::vector<float> k(tokens * width, 1.0f), v;           // equal keys: attention is the mean of the values
  for (std::int64_t token = 0; token < tokens; ++token) v.insert(v.end(), width, static_cast<float>(token));

  const auto new_k = on_gpu(k), new_v = on_gpu(v), q = on_gpu(std::vector<float>(width, 1.0f));
  const auto k_pool = on_gpu(std::vector<float>(12 * width)), v_pool = on_gpu(std::vector<float>(12 * width));
  const auto out = on_gpu(std::vector<float>(width));
  const auto gpu_slots = on_gpu(slots), first_slot = on_gpu(std::vector<std::int64_t>{0, tokens});
  const auto gpu_table = on_gpu(table);
  const cuda::KvRows pool{k_pool.data(), v_pool.data()};
  const cuda::SlotMap map{.block_table = gpu_table.data(), .table_width = 2, .block_size = 4};

  cuda::scatter_kv(DType::f32, {new_k.data(), width, new_v.data(), width, tokens}, width, gpu_slots.data(),
                   k_pool.data(), v_pool.data(), device.stream());
  cuda::Attention attention(device, {.heads = 1, .kv_heads = 1, .head_dim = width}, DType::f32);
  // Sequence 0 has the rows of q from 0 up to 1, which is one row, and its context is 5.
  attention.begin(std::array{0, 1}, std::array{static_cast<std::int32_t>(tokens)});
  attention.run(pool, map, q.data(), width, out.data(), width);

  const auto gathered = on_gpu(std::vector<float>(tokens * width));
  cuda::gather_kv(DType::f32, pool, map, width, {new_k.data(), gathered.data(), first_slot.data(), 1, tokens},
                  device.stream());
  device.synchronize();
  float mean = 0, last = 0;
  cuda::check(cudaMemcpy(&mean, out.data(), sizeof mean, cudaMemcpyDeviceToHost), "copying from the GPU");
  cuda::check(cudaMemcpy(&last, gathered.data() + (tokens - 1) * width, sizeof last, cudaMemcpyDeviceToHost),
              "copying from the GPU");
  std::printf("mean of the values: %.1f, the last of them: %.1f\n", mean, last);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
