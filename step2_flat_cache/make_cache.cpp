/// @file
/// See make_cache.h.
#include "step2_flat_cache/make_cache.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "fmt/format.h"
#include "step2_flat_cache/flat_cache.h"
#ifdef WITH_CUDA
#include "step2_flat_cache/cuda_flat_cache_store.h"
#endif

namespace kvcache {
namespace {

/// One reservation per request, of --max-seq-len positions or else of the model's context. Where reservations
/// of the model's context exceed the memory, a run reserves what its longest request needs and notes it, and
/// a server reserves what fits.
FlatCacheShape reservation(const Program& program, std::vector<std::string>& notes) {
  const ModelConfig& config = program.model->config();
  FlatCacheShape shape{static_cast<std::int64_t>(program.requests.size()), config.max_position_embeddings,
                       config.kv_bytes_per_token(size_of(program.dtype))};
  // Divided by, because the bytes of all reservations may exceed 64 bits.
  const std::int64_t bytes_per_position = shape.sequences * shape.bytes_per_token;
  if (program.options.max_seq_len) {
    shape.max_seq_len = *program.options.max_seq_len;
    if (shape.max_seq_len > std::numeric_limits<std::int64_t>::max() / bytes_per_position)
      throw RunError(fmt::format("no address space for {} reservations of {} positions; reserve less",
                                 shape.sequences, shape.max_seq_len));
    return shape;
  }
  if (program.options.serve) {
    const std::int64_t fitting = program.memory_to_serve / bytes_per_position;
    shape.max_seq_len = std::clamp<std::int64_t>(fitting, 1, shape.max_seq_len);
  } else if (shape.max_seq_len > program.memory / bytes_per_position) {
    shape.max_seq_len = longest_request(program);
    const std::int64_t positions = config.max_position_embeddings, bytes = positions * shape.bytes_per_token;
    const std::string too_much =
        shape.sequences == 1 ? fmt::format("a reservation of {} positions, {} bytes, is", positions, bytes)
                             : fmt::format("{} reservations of {} positions, {} bytes each, are",
                                           shape.sequences, positions, bytes);
    notes.push_back(fmt::format("{} more than {} has; reserving the {} needed", too_much,
                                program.gpu ? "the GPU" : "this machine", shape.max_seq_len));
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
  std::vector<std::string> notes;
  const FlatCacheShape shape = reservation(program, notes);
  auto manager = std::make_unique<FlatCacheManager>(shape);
  check_capacity(program, *manager, "raise --max-seq-len");
  auto store = make_store(program, shape);
  return {std::move(manager), std::move(store), std::move(notes)};
}

}  // namespace kvcache
