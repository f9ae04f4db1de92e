// A solution of exercise 5.
#include <stdexcept>
#include <string>

#include "step3_paged/exercises/exercise5_trim.h"

namespace kvcache {

void trim(BlockTable& table, std::int64_t tokens, std::int64_t block_size, BlockPool& pool) {
  if (tokens < 0 || tokens > table.length) {
    throw std::invalid_argument("cannot take back " + std::to_string(tokens) + " of " +
                                std::to_string(table.length) + " tokens");
  }
  table.length -= tokens;
  const auto needed = static_cast<std::size_t>((table.length + block_size - 1) / block_size);
  while (table.blocks.size() > needed) {
    pool.free(table.blocks.back());
    table.blocks.pop_back();
  }
}

}  // namespace kvcache
