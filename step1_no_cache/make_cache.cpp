/// @file
/// See make_cache.h.
#include "step1_no_cache/make_cache.h"

#include <memory>

#include "step1_no_cache/no_cache.h"
#ifdef WITH_CUDA
#include "step1_no_cache/cuda_no_cache_store.h"
#endif

namespace kvcache {
namespace {

std::unique_ptr<KvStore> make_store(const Program& program) {
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaNoCacheStore>(program.model->config(), program.dtype, *program.gpu);
#endif
  return std::make_unique<NoCacheStore>(program.model->config(), program.dtype, *program.threads);
}

}  // namespace

Cache make_no_cache(const Program& program) {
  return {std::make_unique<NoCacheManager>(), make_store(program)};
}

}  // namespace kvcache
