/// @file
/// Made-up layers for a store: q, k and v of whole sequences. Every pass through a store must give the bits
/// of attention over keys and values that lie one after the other.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/cpu/attention.h"
#include "common/kv/kv_manager.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"
#include "tests/support/random_numbers.h"

namespace kvcache {

class MadeUpLayers {
 public:
  MadeUpLayers(std::int64_t layers, AttentionShape shape, DType dtype = DType::f32)
      : shape_(shape), dtype_(dtype), threads_(std::make_unique<ThreadPool>(1)) {
    config_.layers = layers;
    config_.heads = shape.heads;
    config_.kv_heads = shape.kv_heads;
    config_.head_dim = shape.head_dim;
  }
  // A store keeps references to both.
  const ModelConfig& config() const { return config_; }
  ThreadPool& threads() { return *threads_; }
  std::int64_t bytes_per_token() const { return config_.kv_bytes_per_token(size_of(dtype_)); }

  /// Makes up a sequence of up to `tokens` tokens. Equal seeds give equal numbers.
  void add(std::int32_t sequence, std::int64_t tokens, std::uint32_t seed) {
    std::vector<Layer> layers(static_cast<std::size_t>(config_.layers));
    for (Layer& layer : layers) {
      layer.q = random_numbers(static_cast<std::size_t>(tokens * q_width()), ++seed * 7919);
      layer.k = random_numbers(static_cast<std::size_t>(tokens * kv_width()), seed * 7919 + 1);
      layer.v = random_numbers(static_cast<std::size_t>(tokens * kv_width()), seed * 7919 + 2);
      layer.stored_k = stored(layer.k, dtype_);
      layer.stored_v = stored(layer.v, dtype_);
      layer.out.resize(layer.q.size());
      const cpu::AttentionSequence all{0, tokens, tokens, {}};
      cpu::attention(shape_, {dtype_, layer.stored_k.data(), layer.stored_v.data()}, {&all, 1},
                     layer.q.data(), layer.out.data(), q_width(), dtype_, *threads_);
    }
    sequences_[sequence] = std::move(layers);
    token_ids_.resize(std::max(token_ids_.size(), static_cast<std::size_t>(tokens)));
    std::iota(token_ids_.begin(), token_ids_.end(), 0);
  }

  /// The wanted length of a sequence after a pass.
  struct Length {
    std::int32_t sequence;
    std::int64_t tokens;
  };

  std::optional<PassPlan> plan(KvManager& manager, const std::vector<Length>& lengths) const {
    std::vector<Work> work;
    for (const Length& wanted : lengths) {
      work.push_back({wanted.sequence, std::span(token_ids_).first(static_cast<std::size_t>(wanted.tokens))});
    }
    return manager.plan(work);
  }

  /// Sends a plan's rows through all layers of `store`, and expects the right bits of each row. Rows after
  /// the last sequence are padding, filled with NaN.
  void send(KvStore& store, const PassPlan& plan) const {
    store.begin(plan);
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      const auto numbers_of = [&](auto member, std::int64_t width) {
        Matrix matrix = matrix_of(plan.tokens(), width);
        for_each_row(plan, layer, [&](std::int64_t row, const Layer& from, std::int64_t position) {
          std::memcpy(matrix.row(row), &(from.*member)[static_cast<std::size_t>(position * width)],
                      bytes(width));
        });
        return matrix;
      };
      Matrix q = numbers_of(&Layer::q, q_width()), k = numbers_of(&Layer::k, kv_width());
      const Matrix v = numbers_of(&Layer::v, kv_width());
      Matrix out = matrix_of(plan.tokens(), q_width());
      store.store_and_attend(layer, {}, {q, k, v}, out);  // heads as they are
      for_each_row(plan, layer, [&](std::int64_t row, const Layer& right, std::int64_t position) {
        EXPECT_EQ(std::memcmp(out.row(row), &right.out[static_cast<std::size_t>(position * q_width())],
                              bytes(q_width())),
                  0)
            << "layer " << layer << ", row " << row << ", position " << position;
      });
    }
    store.end();
  }

  /// Plans, sends and commits one pass.
  void pass(KvManager& manager, KvStore& store, const std::vector<Length>& lengths) const {
    const std::optional<PassPlan> planned = plan(manager, lengths);
    ASSERT_TRUE(planned) << "the pass does not fit";
    send(store, *planned);
    manager.commit(*planned);
  }

  /// The right bytes of K and V of one sequence and layer, [tokens, kv_heads, head_dim].
  const std::vector<std::byte>& stored_k(std::int32_t sequence, std::int64_t layer) const {
    return sequences_.at(sequence)[static_cast<std::size_t>(layer)].stored_k;
  }
  const std::vector<std::byte>& stored_v(std::int32_t sequence, std::int64_t layer) const {
    return sequences_.at(sequence)[static_cast<std::size_t>(layer)].stored_v;
  }

  std::int64_t q_width() const { return shape_.heads * shape_.head_dim; }
  std::int64_t kv_width() const { return shape_.kv_heads * shape_.head_dim; }

  /// [rows, cols] of NaN on the CPU. Rows do not touch, and the distance between them is odd.
  static Matrix matrix_of(std::int64_t rows, std::int64_t cols) {
    Matrix matrix;
    matrix.rows = matrix.capacity = rows;
    matrix.cols = cols;
    matrix.stride = cols + 19;
    const auto numbers = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows * matrix.stride),
                                                              std::numeric_limits<float>::quiet_NaN());
    matrix.data = numbers->data();
    matrix.memory = numbers;
    return matrix;
  }

 private:
  struct Layer {
    std::vector<float> q, k, v;                 // [tokens, heads or kv_heads, head_dim]
    std::vector<std::byte> stored_k, stored_v;  // as they lie in memory
    std::vector<float> out;                     // [tokens, heads, head_dim], the right answer
  };

  static std::size_t bytes(std::int64_t width) { return static_cast<std::size_t>(width) * sizeof(float); }

  /// Calls action(row, layer, position) for each row of the plan that belongs to a sequence.
  template <typename Action>
  void for_each_row(const PassPlan& plan, std::int64_t layer, Action action) const {
    for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
      const Layer& of = sequences_.at(plan.sequences[s])[static_cast<std::size_t>(layer)];
      for (std::int64_t row = plan.row_begin[s]; row < plan.row_begin[s + 1]; ++row)
        action(row, of, plan.positions[static_cast<std::size_t>(row)]);
    }
  }

  AttentionShape shape_;
  DType dtype_;
  std::unique_ptr<ThreadPool> threads_;
  ModelConfig config_;
  std::map<std::int32_t, std::vector<Layer>> sequences_;  // [layers] of each
  std::vector<std::int32_t> token_ids_;
};

/// Two layers of 4 query heads and 2 KV heads of 8, and `sequences` sequences of up to `tokens` tokens.
inline MadeUpLayers small_layers(std::int32_t sequences = 3, std::int64_t tokens = 90) {
  MadeUpLayers layers(2, {4, 2, 8});
  for (std::int32_t sequence = 0; sequence < sequences; ++sequence)
    layers.add(sequence, tokens, 100U * static_cast<std::uint32_t>(sequence + 1));
  return layers;
}

/// Appends rows of no sequence, whose slot is -1.
inline void add_padding(PassPlan& plan, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    plan.token_ids.push_back(0);
    plan.positions.push_back(0);
    plan.slots.push_back(-1);
  }
}

/// Writes `block` to all entries of the block table beyond the contexts.
inline void set_unused_entries(PassPlan& plan, std::int64_t block_size, std::int32_t block) {
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const std::int64_t used = (plan.context_len[s] + block_size - 1) / block_size;
    const auto row = plan.block_table.begin() + static_cast<std::ptrdiff_t>(s) * plan.table_width;
    std::fill(row + used, row + plan.table_width, block);
  }
}

/// Six sequences of up to 48 tokens come, grow and go.
template <typename Manager>
void come_grow_and_go(const MadeUpLayers& layers, Manager& manager, KvStore& store, std::mt19937& random,
                      int operations) {
  for (int operation = 0; operation < operations && !testing::Test::HasFailure(); ++operation) {
    const auto sequence = static_cast<std::int32_t>(random() % 6);
    const std::int64_t length = manager.length(sequence);
    if (length == 48 || random() % 6 == 0) {
      manager.free(sequence);
      continue;
    }
    const std::int64_t wanted =
        std::min<std::int64_t>(48, length + 1 + static_cast<std::int64_t>(random() % 9));
    const std::optional<PassPlan> plan = layers.plan(manager, {{sequence, wanted}});
    if (!plan) continue;
    layers.send(store, *plan);
    manager.commit(*plan);
  }
}

}  // namespace kvcache
