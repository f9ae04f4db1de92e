/// @file
/// See make_cache.h.
#include "step2_flat_cache/make_cache.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "fmt/format.h"
#include "step2_flat_cache/flat_cache.h"
#ifdef WITH_CUDA
#include "step2_flat_cache/cuda_flat_cache_store.h"
#endif

namespace kvcache {
namespace {

/// One reservation per request, of --max-seq-len positions or else of the model's context. Where reservations
/// of the model's context exceed the memory, a run reserves what its longest request needs, and a server what
/// fits.
FlatCacheShape reservation(const Program& program) {
  const ModelConfig& config = program.model->config();
  FlatCacheShape shape{static_cast<std::int64_t>(program.requests.size()), config.max_position_embeddings,
                       config.kv_bytes_per_token(size_of(program.dtype))};
  if (program.options.max_seq_len) {
    shape.max_seq_len = *program.options.max_seq_len;
    return shape;
  }
  const std::int64_t wanted = shape.sequences * shape.max_seq_len * shape.bytes_per_token;
  if (program.options.serve) {
    const std::int64_t fitting = program.memory_to_serve / (shape.sequences * shape.bytes_per_token);
    shape.max_seq_len = std::clamp<std::int64_t>(fitting, 1, shape.max_seq_len);
  } else if (wanted > program.memory) {
    shape.max_seq_len = longest_request(program);
    fmt::print(
        stderr,
        "note: {} reservations of {} positions are {} bytes, more than {} has; reserving the {} needed\n",
        shape.sequences, config.max_position_embeddings, wanted, program.gpu ? "the GPU" : "this machine",
        shape.max_seq_len);
  }
  return shape;
}

std::unique_ptr<KvStore> make_store(const Program& program, const FlatCacheShape& shape) {
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaFlatCacheStore>(program.model->config(), shape, program.dtype, *program.gpu);
#endif
  return std::make_unique<FlatCacheStore>(program.model->config(), shape, program.dtype, *program.threads);
}

}  // namespace

Cache make_flat_cache(const Program& program) {
  const FlatCacheShape shape = reservation(program);
  auto manager = std::make_unique<FlatCacheManager>(shape);
  check_capacity(program, *manager, "raise --max-seq-len");
  return {std::move(manager), make_store(program, shape)};
}

}  // namespace kvcache
