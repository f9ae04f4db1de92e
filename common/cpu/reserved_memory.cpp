/// @file
/// See reserved_memory.h.
#include "common/cpu/reserved_memory.h"

#include <sys/mman.h>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache {

ReservedMemory::ReservedMemory(std::int64_t bytes, std::int64_t of) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  void* mapped =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw RunError(fmt::format("no address space for {} bytes of keys and values; reserve less", of));
  }
  data_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped),
                                     [size](std::byte* data) { munmap(data, size); });
}

void ReservedMemory::use_large_pages() const {
#ifdef MADV_HUGEPAGE
  if (data_ != nullptr) madvise(data_.get(), static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);  // a hint
#endif
}

}  // namespace kvcache
