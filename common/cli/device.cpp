/// @file
/// See device.h.
#include "common/cli/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/cpu/cpu_backend.h"
#include "fmt/format.h"
#ifdef WITH_CUDA
#include "common/cuda/cuda_backend.h"
#include "common/cuda/device_weights.h"
#endif

namespace kvcache {

namespace {

std::unique_ptr<Transformer> make_cpu_model(const ModelConfig& config, Weights weights, DType dtype,
                                            ThreadPool& threads) {
  return std::make_unique<Transformer>(config, std::move(weights),
                                       std::make_unique<CpuBackend>(dtype, threads));
}

/// A store for a trial pass, whose memory counts and whose result does not: keeps no K and V, and leaves the
/// result of attention as it is.
class NothingKept final : public KvStore {
 public:
  void begin(const PassPlan&) override {}
  void store_and_attend(std::int64_t, const HeadSettings&, const NewRows&, Matrix&) override {}
};

}  // namespace

#ifdef WITH_CUDA

std::shared_ptr<const cuda::Device> choose_gpu(DeviceChoice wanted) {
  if (wanted == DeviceChoice::cpu || (wanted == DeviceChoice::automatic && !cuda::Device::is_expected()))
    return nullptr;
  try {
    auto gpu = std::make_shared<const cuda::Device>();
    cuda::Cublas::check_library();  // before the weights are loaded
    return gpu;
  } catch (const RunError& error) {
    if (wanted == DeviceChoice::cuda) throw;
    std::fputs(fmt::format("note: running on the CPU; {}\n", error.what()).c_str(), stderr);
    return nullptr;
  }
}

DType choose_dtype(std::optional<DType> wanted, const cuda::Device* gpu) {
  if (gpu == nullptr) return wanted.value_or(DType::f32);
  if (wanted) gpu->check_dtype(*wanted);
  return wanted.value_or(gpu->default_dtype());
}

std::unique_ptr<Transformer> make_model(const ModelConfig& config, Weights weights, DType dtype,
                                        ThreadPool& threads, const std::shared_ptr<const cuda::Device>& gpu) {
  if (!gpu) return make_cpu_model(config, std::move(weights), dtype, threads);
  return std::make_unique<Transformer>(config, cuda::upload_weights(weights, dtype, *gpu),
                                       std::make_unique<cuda::CudaBackend>(dtype, gpu));
}

std::int64_t free_memory(const cuda::Device& gpu) {
  return gpu.free_memory();
}

std::int64_t memory_left_by_a_pass(Transformer& model, const cuda::Device& gpu, std::int64_t tokens,
                                   std::int64_t sequences) {
  constexpr std::int64_t kMargin = 256 << 20;
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(std::max(tokens, sequences)));
  PassPlan plan;
  plan.add(0, ids, 0);
  plan.logits_rows.assign(static_cast<std::size_t>(sequences), plan.logits_rows.back());
  NothingKept store;
  model.forward(plan, store);
  gpu.synchronize();
  const std::int64_t picking = cuda::PickIds::most_bytes(model.config().vocab_size, sequences);
  return std::max<std::int64_t>(0, gpu.free_memory() - picking - kMargin);
}

#else

std::shared_ptr<const cuda::Device> choose_gpu(DeviceChoice wanted) {
  if (wanted != DeviceChoice::cuda) return nullptr;
  throw RunError("--device cuda: this build has no CUDA support; use --device cpu");
}

DType choose_dtype(std::optional<DType> wanted, const cuda::Device*) {
  return wanted.value_or(DType::f32);
}

std::unique_ptr<Transformer> make_model(const ModelConfig& config, Weights weights, DType dtype,
                                        ThreadPool& threads, const std::shared_ptr<const cuda::Device>&) {
  return make_cpu_model(config, std::move(weights), dtype, threads);
}

// No GPU is ever chosen.
std::int64_t free_memory(const cuda::Device&) {
  return 0;
}
std::int64_t memory_left_by_a_pass(Transformer&, const cuda::Device&, std::int64_t, std::int64_t) {
  return 0;
}

#endif

}  // namespace kvcache
