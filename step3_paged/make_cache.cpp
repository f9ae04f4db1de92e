/// @file
/// See make_cache.h.
#include "step3_paged/make_cache.h"

#include <memory>

#include "step3_paged/paged_kv_store.h"
#include "step3_paged/paged_manager.h"
#include "step3_paged/sizing.h"
#ifdef WITH_CUDA
#include "step3_paged/cuda_paged_kv_store.h"
#endif

namespace kvcache {
namespace {

std::unique_ptr<KvStore> make_store(const Program& program, const PagedShape& shape) {
  const PagedKvStore::Settings settings{program.options.attention, program.options.debug_fill};
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaPagedKvStore>(program.model->config(), shape, program.dtype, settings,
                                              *program.gpu);
#endif
  return std::make_unique<PagedKvStore>(program.model->config(), shape, program.dtype, settings,
                                        *program.threads);
}

}  // namespace

Cache make_paged_cache(const Program& program) {
  const PagedShape shape = paged_shape(program);
  auto manager = std::make_unique<PagedManager>(shape);
  check_capacity(program, *manager, "raise --num-blocks or --kv-memory");
  return {std::move(manager), make_store(program, shape)};
}

}  // namespace kvcache
