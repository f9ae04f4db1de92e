/// @file
/// See paged_kv_store.h.
#include "step3_paged/paged_kv_store.h"

#include <cstring>

#include "common/base/stored_number.h"
#include "common/cpu/scatter.h"

namespace kvcache {

PagedKvStore::PagedKvStore(const ModelConfig& config, const PagedShape& shape, DType dtype, Settings settings,
                           ThreadPool& threads)
    : config_(config),
      shape_(shape),
      dtype_(dtype),
      settings_(settings),
      threads_(threads),
      attention_shape_{config.heads, config.kv_heads, config.head_dim},
      block_bytes_(shape.block_size * config.kv_width() * size_of(dtype)),
      layer_bytes_(shape.blocks * block_bytes_),
      k_(config.layers * layer_bytes_, 2 * config.layers * layer_bytes_),
      v_(config.layers * layer_bytes_, 2 * config.layers * layer_bytes_) {
  k_.use_large_pages();
  v_.use_large_pages();
}

void PagedKvStore::begin(const PassPlan& plan) {
  plan_ = &plan;
  if (settings_.fill != DebugFill::none) {
    for (const std::int32_t block : plan.fresh_blocks) fill(block);
  }
  for (const BlockCopy& blocks : plan.copies) copy(blocks);  // for step 4
  sequences_.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const std::int32_t* table = &plan.block_table[s * static_cast<std::size_t>(plan.table_width)];
    sequences_.push_back({.row_begin = plan.row_begin[s],
                          .row_end = plan.row_begin[s + 1],
                          .context = plan.context_len[s],
                          .slots = {.blocks = table, .block_size = shape_.block_size}});
  }
}

void PagedKvStore::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                    Matrix& out) {
  cpu::rotate_and_store(heads, config_.head_dim, rows, plan_->slots, dtype_, k_layer(layer), v_layer(layer),
                        threads_);
  const cpu::KvRows stored{dtype_, k_layer(layer), v_layer(layer)};
  // Both get all rows: `row(0)` is where the first row lies, the others follow `stride` numbers apart, in q
  // and in `out` alike. dtype_ is the type of K, V and `out`.
  if (settings_.attention == AttentionPath::gather) {
    gathered_.attend(attention_shape_, stored, sequences_, rows.q.row(0), out.row(0), rows.q.stride, dtype_,
                     threads_);
  } else {
    cpu::attention(attention_shape_, stored, sequences_, rows.q.row(0), out.row(0), rows.q.stride, dtype_,
                   threads_);
  }
}

void PagedKvStore::copy(const BlockCopy& blocks) {
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    std::memcpy(k_block(layer, blocks.to), k_block(layer, blocks.from),
                static_cast<std::size_t>(block_bytes_));
    std::memcpy(v_block(layer, blocks.to), v_block(layer, blocks.from),
                static_cast<std::size_t>(block_bytes_));
  }
}

void PagedKvStore::fill(std::int32_t block) {
  const float value = number_of(settings_.fill);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    for (std::int64_t at = 0; at < block_bytes_; at += size_of(dtype_)) {
      write_number(dtype_, value, k_block(layer, block) + at);
      write_number(dtype_, value, v_block(layer, block) + at);
    }
  }
}

}  // namespace kvcache
