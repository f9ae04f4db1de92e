/// @file
/// See kv_manager.h.
#include "common/kv/kv_manager.h"

#include <stdexcept>

namespace kvcache {

void KvManager::fork(std::int32_t, std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}
void KvManager::pin(std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}

}  // namespace kvcache
