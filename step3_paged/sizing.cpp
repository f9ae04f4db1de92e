/// @file
/// See sizing.h.
#include "step3_paged/sizing.h"

#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

std::int64_t machine_memory() {
  return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

/// Blocks for all requests at once, with the watermark that admission leaves free beside others, and for a
/// pinned prefix. The last id of a sequence is never fed back, so it needs no slot.
std::int64_t fitting_blocks(const Program& program, const PagedShape& shape) {
  std::int64_t blocks = shape.blocks_for(static_cast<std::int64_t>(program.pinned_prefix.size()));
  for (const Request& request : program.requests) {
    const std::int64_t length =
        static_cast<std::int64_t>(request.prompt_ids.size()) + std::max<std::int64_t>(request.max_tokens, 1);
    blocks += shape.blocks_for(std::min(length, program.model->config().max_position_embeddings) - 1);
  }
  if (program.requests.size() == 1) return blocks;
  std::int64_t total = blocks;
  while (total - total / 100 < blocks) ++total;
  return total;
}

}  // namespace

PagedShape paged_shape(const Program& program) {
  const Options& options = program.options;
  PagedShape shape{0, options.block_size, program.model->config().kv_bytes_per_token(size_of(program.dtype))};
  const std::int64_t memory = machine_memory();
  // One block must fit; then no product below can overflow.
  if (shape.block_size > memory / shape.bytes_per_token) {
    throw InputError(fmt::format(
        "--block-size {}: one block of {} bytes per token is more than this machine's {} bytes of memory",
        shape.block_size, shape.bytes_per_token, memory));
  }
  const std::int64_t block_bytes = shape.block_size * shape.bytes_per_token;
  if (options.kv_memory_auto)
    throw InputError("--kv-memory auto needs --device cuda; on the CPU give a size such as 512MiB");
  if (options.kv_memory_bytes) {
    shape.blocks = *options.kv_memory_bytes / block_bytes;
    if (shape.blocks == 0) {
      throw InputError(fmt::format("--kv-memory of {} bytes holds no block: one of {} tokens takes {} bytes",
                                   *options.kv_memory_bytes, shape.block_size, block_bytes));
    }
  } else {
    shape.blocks = options.num_blocks ? *options.num_blocks : fitting_blocks(program, shape);
  }
  check_memory("a pool", shape.blocks, shape);
  return shape;
}

void check_memory(const char* what, std::int64_t blocks, const PagedShape& shape) {
  const std::int64_t memory = machine_memory();
  const std::int64_t block_bytes = shape.block_size * shape.bytes_per_token;
  if (blocks > memory / block_bytes) {
    throw InputError(fmt::format(
        "{} of {} blocks of {} bytes is more than this machine's {} bytes of memory; ask for at most {}",
        what, blocks, block_bytes, memory, memory / block_bytes));
  }
}

}  // namespace kvcache
