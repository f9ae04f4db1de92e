/// @file
/// See sizing.h.
#include "step3_paged/sizing.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/cli/machine.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

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

/// What blocks have to fit into.
struct Memory {
  const char* name;
  std::int64_t bytes;
};

/// @throws InputError with the numbers if they do not.
void check_fits(const char* what, std::int64_t blocks, const PagedShape& shape, const Memory& memory) {
  const std::int64_t block_bytes = shape.block_size * shape.bytes_per_token;
  if (blocks <= memory.bytes / block_bytes) return;
  throw InputError(fmt::format("{} of {} blocks of {} bytes is more than {}, {} bytes; ask for at most {}",
                               what, blocks, block_bytes, memory.name, memory.bytes,
                               memory.bytes / block_bytes));
}

/// Bytes that a pool can take. On a GPU attention has memory of its own for the parts of long rows, and with
/// --attention gather for one layer of all sequences of a pass; both grow by half, or to twice what is
/// needed.
std::int64_t usable(const Program& program) {
  const Options& options = program.options;
  if (!program.gpu || !(options.kv_memory_auto || options.serve)) return program.memory;
  const ModelConfig& config = program.model->config();
  const std::int64_t tokens = tokens_of_all_requests(program);
  // A part is of 256 positions at least; the query heads of a group are taken 16 at a time.
  const std::int64_t group = config.heads / config.kv_heads;
  const std::int64_t heads = config.kv_heads * (group <= 16 ? group : (group + 15) / 16 * 16);
  const std::int64_t part_bytes = heads * (config.head_dim + 2) * 4;
  std::int64_t left = program.memory - 2 * (tokens / 256 + std::ssize(program.requests)) * part_bytes;
  if (options.attention == AttentionPath::gather)
    left -= tokens * 3 / 2 * config.kv_bytes_per_token(size_of(program.dtype)) / config.layers;
  return std::max<std::int64_t>(0, left);
}

}  // namespace

PagedShape paged_shape(const Program& program) {
  const Options& options = program.options;
  PagedShape shape{0, options.block_size, program.model->config().kv_bytes_per_token(size_of(program.dtype))};
  const Memory memory{program.gpu ? "the GPU's memory that is left" : "this machine's memory",
                      usable(program)};
  // One block must fit; then no product below can overflow.
  if (shape.block_size > memory.bytes / shape.bytes_per_token) {
    throw InputError(fmt::format("--block-size {}: one block of {} bytes per token is more than {}, {} bytes",
                                 shape.block_size, shape.bytes_per_token, memory.name, memory.bytes));
  }
  const std::int64_t block_bytes = shape.block_size * shape.bytes_per_token;
  if (options.kv_memory_auto) {
    if (!program.gpu)
      throw InputError("--kv-memory auto needs --device cuda; on the CPU give a size such as 512MiB");
    shape.blocks = memory.bytes / block_bytes;
  } else if (options.kv_memory_bytes) {
    shape.blocks = *options.kv_memory_bytes / block_bytes;
    if (shape.blocks == 0) {
      throw InputError(fmt::format("--kv-memory of {} bytes holds no block: one of {} tokens takes {} bytes",
                                   *options.kv_memory_bytes, shape.block_size, block_bytes));
    }
  } else {
    shape.blocks = options.num_blocks ? *options.num_blocks : fitting_blocks(program, shape);
    if (options.serve && !options.num_blocks)
      shape.blocks = std::clamp<std::int64_t>(std::min(program.memory_to_serve, memory.bytes) / block_bytes,
                                              1, shape.blocks);
  }
  check_fits("a pool", shape.blocks, shape, memory);
  return shape;
}

void check_host_tier(std::int64_t blocks, const PagedShape& shape) {
  check_fits("a host tier", blocks, shape, {"this machine's memory", machine_memory().total});
}

}  // namespace kvcache
