/// @file
/// See sizing.h.
#include "step3_paged/sizing.h"

#include <algorithm>
#include <limits>

#include "common/base/error.h"
#include "common/cli/machine.h"
#include "fmt/format.h"
#ifdef WITH_CUDA
#include "step3_paged/cuda_paged_kv_store.h"
#endif

namespace kvcache {
namespace {

/// Blocks for all requests at once and for a pinned prefix; with several requests the watermark comes on top.
/// The last id of a sequence never goes through the model, so it needs no slot.
std::int64_t fitting_blocks(const Program& program, const PagedShape& shape) {
  std::int64_t blocks = shape.blocks_for(static_cast<std::int64_t>(program.pinned_prefix.size()));
  for (const Request& request : program.requests) {
    const std::int64_t length =
        static_cast<std::int64_t>(request.prompt_ids.size()) + std::max<std::int64_t>(request.max_tokens, 1);
    blocks += shape.blocks_for(std::min(length, program.model->config().max_position_embeddings) - 1);
  }
  if (program.requests.size() == 1) return blocks;
  return blocks_with_watermark(blocks);
}

/// The memory that blocks must fit into.
struct Memory {
  const char* name;
  std::int64_t bytes;
};

/// @throws InputError with the numbers if `blocks` do not fit into `memory`.
void check_fits(const char* what, std::int64_t blocks, const PagedShape& shape, const Memory& memory) {
  const std::int64_t block_bytes = shape.block_bytes();
  if (blocks <= memory.bytes / block_bytes) return;
  throw InputError(fmt::format("{} of {} blocks of {} bytes is more than {}, {} bytes; ask for at most {}",
                               what, blocks, block_bytes, memory.name, memory.bytes,
                               memory.bytes / block_bytes));
}

/// Bytes that a pool may take of `program.memory`: on a GPU, what the buffers of attention leave.
std::int64_t usable(const Program& program) {
#ifdef WITH_CUDA
  const Options& options = program.options;
  if (program.gpu && (options.kv_memory_auto || options.serve)) {
    const std::int64_t attention = CudaPagedKvStore::most_bytes_of_attention(
        program.model->config(), program.dtype, options.attention, tokens_of_all_requests(program),
        std::ssize(program.requests));
    return std::max<std::int64_t>(0, program.memory - attention);
  }
#endif
  return program.memory;
}

/// @throws InputError with the numbers, for sizes that hold no block.
void check_holds_a_block(const Program& program, const PagedShape& shape, const Memory& memory) {
  const Options& options = program.options;
  // If one block fits, no product of sizes overflows.
  if (shape.block_size > memory.bytes / shape.bytes_per_token) {
    throw InputError(
        fmt::format("--block-size {}: one block of {} bytes per token is more than {}, {} bytes; "
                    "ask for at most {}",
                    shape.block_size, shape.bytes_per_token, memory.name, memory.bytes,
                    memory.bytes / shape.bytes_per_token));
  }
  if (options.kv_memory_auto && !program.gpu)
    throw InputError("--kv-memory auto needs --device cuda; on the CPU give a size such as 512MiB");
  if (options.kv_memory_bytes && *options.kv_memory_bytes < shape.block_bytes()) {
    throw InputError(
        fmt::format("--kv-memory {}: a block takes {} bytes with --block-size {}; give at least that, or a "
                    "smaller --block-size",
                    *options.kv_memory_bytes, shape.block_bytes(), shape.block_size));
  }
}

/// Blocks that the command line asks for. Without an option: as many as the requests need, and in a server at
/// most as many as it may take.
std::int64_t wanted_blocks(const Program& program, const PagedShape& shape, std::int64_t usable_bytes) {
  const Options& options = program.options;
  if (options.kv_memory_auto) return usable_bytes / shape.block_bytes();
  if (options.kv_memory_bytes) return *options.kv_memory_bytes / shape.block_bytes();
  if (options.num_blocks) return *options.num_blocks;
  const std::int64_t needed = fitting_blocks(program, shape);
  if (!options.serve) return needed;
  const std::int64_t at_most = std::min(program.memory_to_serve, usable_bytes) / shape.block_bytes();
  return std::clamp<std::int64_t>(at_most, 1, needed);
}

}  // namespace

PagedShape paged_shape(const Program& program) {
  PagedShape shape{.block_size = program.options.block_size,
                   .bytes_per_token = program.model->config().kv_bytes_per_token(size_of(program.dtype))};
  const Memory memory{program.gpu ? "the GPU's memory that is left" : "this machine's memory",
                      usable(program)};
  check_holds_a_block(program, shape, memory);
  shape.blocks = wanted_blocks(program, shape, memory.bytes);
  check_fits("a pool", shape.blocks, shape, memory);
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (shape.blocks > most)
    throw InputError(
        fmt::format("a pool of {} blocks is more than ids of 32 bits can name; ask for at most {}, "
                    "or give a larger --block-size",
                    shape.blocks, most));
  return shape;
}

/// Of each full hundred of a pool one block is the watermark: 99 wanted blocks need 99, and 100 need 101.
std::int64_t blocks_with_watermark(std::int64_t wanted) {
  return wanted + (wanted - 1) / 99;
}

void check_host_tier(std::int64_t blocks, const PagedShape& shape) {
  check_fits("a host tier", blocks, shape, {"this machine's memory", machine_memory().total});
}

}  // namespace kvcache
