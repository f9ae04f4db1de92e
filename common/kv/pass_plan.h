/// @file
/// One forward pass as integers: which tokens go through the model, at which positions they stand, and in
/// which slots their keys and values are kept. A manager writes it; the transformer and a store read it.
/// `add_slots` works out the slots. Chapters: steps 1 to 4.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// The first position that is computed of a sequence of `length` tokens, if the first `known` of them have K
/// and V. The last token is always computed: its K and V may be kept, but the logits after it never are.
inline std::int64_t first_computed_position(std::int64_t known, std::int64_t length) {
  return std::min(known, length - 1);
}

/// The K and V of one block, all layers, copied to another place.
struct BlockCopy {
  std::int32_t from = 0;  ///< block id; in `swaps_in` a host block, which is a place in the host tier
  std::int32_t to = 0;    ///< block id; in `swaps_out` a host block
};

/// A batch of sequences of different lengths laid end to end. Sequence s has the rows row_begin[s] to
/// row_begin[s + 1]; they are the last positions of its context.
struct PassPlan {
  std::vector<std::int32_t> sequences;    ///< [sequences] the caller's ids
  std::vector<std::int32_t> token_ids;    ///< [tokens]
  std::vector<std::int32_t> positions;    ///< [tokens] 0 is the first token of a sequence
  std::vector<std::int32_t> row_begin;    ///< [sequences + 1]
  std::vector<std::int32_t> context_len;  ///< [sequences] tokens whose K and V exist after this pass
  std::vector<std::int32_t> logits_rows;  ///< [sequences] the last row of each
  std::vector<std::int64_t> slots;        ///< [tokens] where each row's K and V go; -1: nowhere (padding)
  std::vector<std::int32_t>
      block_table;               ///< [sequences, table_width], unused entries -1; empty without blocks
  std::int32_t table_width = 0;  ///< blocks of the longest table, rounded up to a power of two
  std::vector<std::int32_t>
      fresh_blocks;  ///< blocks that a sequence got for this pass, still without content
  // Done before anything is written, in this order:
  std::vector<BlockCopy> swaps_out;  ///< from the pool to the host tier; chosen by HostTier::swap_out
  std::vector<BlockCopy> swaps_in;   ///< from the host tier to the pool
  std::vector<BlockCopy> copies;     ///< within the pool (copy-on-write)

  /// Appends a sequence whose tokens from `first` on go through the model; the last one always does, because
  /// its logits are wanted. `token_ids` is the whole sequence so far, not empty.
  void add(std::int32_t sequence, std::span<const std::int32_t> token_ids, std::int32_t first) {
    if (row_begin.empty()) row_begin.push_back(0);
    const auto length = static_cast<std::int32_t>(token_ids.size());
    first = static_cast<std::int32_t>(first_computed_position(first, length));
    sequences.push_back(sequence);
    context_len.push_back(length);
    for (std::int32_t position = first; position < length; ++position) {
      this->token_ids.push_back(token_ids[static_cast<std::size_t>(position)]);
      positions.push_back(position);
    }
    row_begin.push_back(row_begin.back() + length - first);
    logits_rows.push_back(row_begin.back() - 1);
  }

  /// Gives the rows of the sequence added last their slots: block_id * block_size + offset, in 64 bits.
  void add_slots(const std::vector<std::int32_t>& blocks, std::int64_t block_size) {
    for (std::size_t row = slots.size(); row < positions.size();) {
      // All rows of a block at once: one division for each block, not for each row.
      const std::int64_t block = blocks[static_cast<std::size_t>(positions[row] / block_size)];
      std::int64_t offset = positions[row] % block_size;
      for (; offset < block_size && row < positions.size(); ++offset, ++row)
        slots.push_back(block * block_size + offset);
    }
  }

  /// Gives every sequence its row of the block table; `tables` [sequences] in the order of `add`.
  void set_block_table(std::span<const std::vector<std::int32_t>* const> tables) {
    for (const std::vector<std::int32_t>* table : tables) {
      table_width = std::max(table_width, static_cast<std::int32_t>(table->size()));
    }
    // For a GPU (skip it on a first reading): with a width that seldom changes it can replay earlier passes.
    table_width = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(table_width)));
    block_table.assign(tables.size() * static_cast<std::size_t>(table_width), -1);
    for (std::size_t s = 0; s < tables.size(); ++s) {
      std::copy(tables[s]->begin(), tables[s]->end(),
                block_table.begin() + static_cast<std::ptrdiff_t>(s) * table_width);
    }
  }

  /// Rows of the pass.
  std::int64_t tokens() const { return static_cast<std::int64_t>(token_ids.size()); }
};

}  // namespace kvcache
