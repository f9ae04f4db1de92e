// Step 3's storage on the GPU beside that on the CPU: after the same plans both hold the same bytes.
// Attention has the same bits whether K and V lie in blocks, are gathered first, or lie one after the other.
#include "step3_paged/cuda_paged_kv_store.h"
#include "step3_paged/paged_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gpu.h"
#include "tests/support/gpu_matrix.h"
#include "tests/support/made_up_layers.h"

namespace kvcache {
namespace {

using Length = MadeUpLayers::Length;
using Bytes = std::vector<std::byte>;

const float kNan = std::numeric_limits<float>::quiet_NaN();

/// How far a number may be from the CPU's: K, V, the weights and the output are rounded to the type, and so,
/// unlike on the CPU, are the made-up queries. All numbers lie in [-1, 1].
float tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5F : dtype == DType::f16 ? 4e-3F : 3e-2F;
}

/// A store whose memory a test can read and overwrite.
template <typename Store>
class Open : public Store {
 public:
  using Store::block_bytes;
  using Store::k_block;
  using Store::layers;
  using Store::Store;
  using Store::v_block;
};

/// A store on the CPU and two on the GPU that get the same. The CPU's answers are passed on; the GPU's are
/// held against them, and bit for bit against each other and against attention over contiguous K and V.
class TwinStores final : public KvStore {
 public:
  TwinStores(MadeUpLayers& model, const PagedShape& shape, DType dtype, DebugFill fill,
             const cuda::Device& device)
      : cpu(model.config(), shape, dtype, {AttentionPath::paged, fill}, model.threads()),
        paged(model.config(), shape, dtype, {AttentionPath::paged, fill}, device),
        gathered(model.config(), shape, dtype, {AttentionPath::gather, fill}, device),
        model_(model),
        shape_(shape),
        dtype_(dtype),
        device_(device),
        contiguous_(device, {model.config().heads, model.config().kv_heads, model.config().head_dim}, dtype) {
  }

  void begin(const PassPlan& plan) override {
    plan_ = &plan;
    for (KvStore* store :
         {static_cast<KvStore*>(&cpu), static_cast<KvStore*>(&paged), static_cast<KvStore*>(&gathered)})
      store->begin(plan);
    contiguous_.begin(plan.row_begin, plan.context_len);
  }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& new_rows,
                        Matrix& out) override {
    cpu.store_and_attend(layer, heads, new_rows, out);
    const std::int64_t rows = plan_->row_begin.back();  // without padding
    Matrix q = matrix_on_gpu(new_rows.q, dtype_, device_), k = matrix_on_gpu(new_rows.k, dtype_, device_);
    const Matrix v = matrix_on_gpu(new_rows.v, dtype_, device_);
    const Matrix nan = MadeUpLayers::matrix_of(q.rows, q.cols);
    const auto answer_of = [&](auto attend) {
      Matrix answer = matrix_on_gpu(nan, dtype_, device_);
      attend(answer);
      return rows_of(answer, rows, dtype_, device_);
    };
    const auto stored_in = [&](KvStore& store) {
      return answer_of([&](Matrix& answer) { store.store_and_attend(layer, heads, {q, k, v}, answer); });
    };
    const Bytes of_paged = stored_in(paged), of_gathered = stored_in(gathered);
    const Bytes of_contiguous = answer_of([&](Matrix& answer) { attend_contiguous(layer, q, answer); });
    EXPECT_TRUE(of_paged == of_contiguous) << "through the block table, layer " << layer;
    EXPECT_TRUE(of_gathered == of_contiguous) << "gathered first, layer " << layer;
    expect_near(of_paged, out, rows);
  }

  /// Fills all pools.
  void spoil(float value) {
    Bytes bytes(static_cast<std::size_t>(pool_bytes()));
    for (std::int64_t at = 0; at < pool_bytes(); at += size_of(dtype_))
      write_number(dtype_, value, &bytes[static_cast<std::size_t>(at)]);
    std::memcpy(cpu.k_block(0, 0), bytes.data(), bytes.size());
    std::memcpy(cpu.v_block(0, 0), bytes.data(), bytes.size());
    for (std::byte* pool :
         {paged.k_block(0, 0), paged.v_block(0, 0), gathered.k_block(0, 0), gathered.v_block(0, 0)}) {
      cuda::check(cudaMemcpyAsync(pool, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, device_.stream()),
                  "filling a pool");
    }
    device_.synchronize();
  }
  /// `blocks` from `first` on hold the same bytes in all stores and layers.
  void expect_same_blocks(std::int32_t first, std::int64_t blocks) {
    const auto bytes = static_cast<std::size_t>(blocks * cpu.block_bytes());
    for (std::int64_t layer = 0; layer < cpu.layers(); ++layer) {
      for (const auto* store : {&paged, &gathered}) {
        EXPECT_EQ(std::memcmp(from_gpu(store->k_block(layer, first), bytes).data(), cpu.k_block(layer, first),
                              bytes),
                  0)
            << "K of layer " << layer << ", from block " << first;
        EXPECT_EQ(std::memcmp(from_gpu(store->v_block(layer, first), bytes).data(), cpu.v_block(layer, first),
                              bytes),
                  0)
            << "V of layer " << layer << ", from block " << first;
      }
    }
  }
  void expect_same_pools() { expect_same_blocks(0, shape_.blocks); }

  Open<PagedKvStore> cpu;
  Open<CudaPagedKvStore> paged, gathered;

 private:
  std::int64_t pool_bytes() const { return model_.config().layers * shape_.blocks * cpu.block_bytes(); }

  Bytes from_gpu(const std::byte* data, std::size_t count) const {
    Bytes bytes(count);
    cuda::check(cudaMemcpyAsync(bytes.data(), data, count, cudaMemcpyDeviceToHost, device_.stream()),
                "copying from the GPU");
    device_.synchronize();
    return bytes;
  }

  void attend_contiguous(std::int64_t layer, const Matrix& q, Matrix& out) {
    std::vector<std::int64_t> first_slots;
    Bytes k, v;  // [tokens, kv_heads, head_dim] of all sequences
    const std::int64_t row_bytes = model_.kv_width() * size_of(dtype_);
    for (std::size_t s = 0; s < plan_->sequences.size(); ++s) {
      first_slots.push_back(std::ssize(k) / row_bytes);
      const Bytes& all_k = model_.stored_k(plan_->sequences[s], layer);
      const Bytes& all_v = model_.stored_v(plan_->sequences[s], layer);
      const std::ptrdiff_t used = plan_->context_len[s] * row_bytes;
      k.insert(k.end(), all_k.begin(), all_k.begin() + used);
      v.insert(v.end(), all_v.begin(), all_v.begin() + used);
    }
    cuda::Upload<std::byte> gpu_k, gpu_v;
    cuda::Upload<std::int64_t> gpu_first;
    contiguous_.run({gpu_k(k, device_.stream()), gpu_v(v, device_.stream())},
                    {.first_slot = gpu_first(first_slots, device_.stream())}, q.data, q.stride, out.data,
                    out.stride);
    device_.synchronize();  // they go
  }

  void expect_near(const Bytes& answers, const Matrix& right, std::int64_t rows) const {
    std::int64_t wrong = 0;
    const std::byte* at = answers.data();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < right.cols; ++col, at += size_of(dtype_)) {
        const float distance = std::abs(read_number(dtype_, at) - right.row(row)[col]);
        if (!(distance <= tolerance(dtype_))) ++wrong;  // NaN is
      }
    }
    EXPECT_EQ(wrong, 0) << "numbers are not near the CPU's answers, in " << name_of(dtype_);
  }

  MadeUpLayers& model_;
  PagedShape shape_;
  DType dtype_;
  const cuda::Device& device_;
  cuda::Attention contiguous_;
  const PassPlan* plan_ = nullptr;
};

/// A paged cache on both devices and the layers that use it.
struct PagedCache {
  PagedCache(MadeUpLayers& model, std::int64_t blocks, std::int64_t block_size, const cuda::Device& device,
             DebugFill fill = DebugFill::none, DType dtype = DType::f32)
      : layers(model),
        shape{blocks, block_size, model.bytes_per_token()},
        manager(shape),
        stores(model, shape, dtype, fill, device) {
    stores.spoil(0);  // as the CPU's memory is: a block that nothing has written holds the same bytes
  }

  void pass(const std::vector<Length>& lengths) { layers.pass(manager, stores, lengths); }
  std::optional<PassPlan> plan(const std::vector<Length>& lengths) { return layers.plan(manager, lengths); }

  MadeUpLayers& layers;
  PagedShape shape;
  PagedManager manager;
  TwinStores stores;
};

class CudaPagedKvStoreTest : public OnGpu {
 protected:
  MadeUpLayers made_up(std::int32_t sequences, std::int64_t tokens, std::int64_t layers = 2,
                       AttentionShape heads = {4, 2, 16}, DType dtype = DType::f32) {
    MadeUpLayers model(layers, heads, dtype);
    for (std::int32_t sequence = 0; sequence < sequences; ++sequence)
      model.add(sequence, tokens, static_cast<std::uint32_t>(random_()) % 1'000'000);
    return model;
  }

  std::uint32_t seed_ = std::random_device{}();
  std::mt19937 random_{seed_};

 private:
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

TEST_F(CudaPagedKvStoreTest, BlocksHoldTheBytesOfTheCpuAndEveryWayToAttendHasTheSameBits) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (!has(dtype)) continue;
    for (const std::int64_t head_dim : {32, 64, 80}) {
      MadeUpLayers layers = made_up(3, 80, 2, {4, 2, head_dim}, dtype);
      for (const std::int64_t block_size : {1, 2, 3, 7, 8, 16, 17, 32, 48, 128}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", head_dim " + std::to_string(head_dim) +
                     ", block size " + std::to_string(block_size));
        PagedCache cache(layers, 170, block_size, device(), DebugFill::none, dtype);
        cache.pass({{0, 1}, {1, 33}});           // prefill
        cache.pass({{2, 80}, {0, 2}, {1, 34}});  // prefill and decode
        cache.pass({{0, 3}, {1, 35}});           // decode: the slots are made on the GPU
        cache.pass({{1, 60}, {0, 20}});          // chunks
        cache.stores.expect_same_pools();
      }
    }
  }
}

/// A decode pass makes its heads ready in the kernel of attention, a pass that gathers in kernels of their
/// own.
TEST_F(CudaPagedKvStoreTest, HeadsMadeReadyInsideAttentionHaveTheBitsOfThoseMadeReadyBefore) {
  constexpr std::int64_t kBlockSize = 16, kBlocks = 80, kSequences = 4, kLast = 700, kMostRows = 1000;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (!has(dtype)) continue;
    for (const AttentionShape heads : {AttentionShape{4, 2, 64}, AttentionShape{3, 3, 128},
                                       AttentionShape{20, 1, 128}, AttentionShape{4, 2, 32}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", head_dim " + std::to_string(heads.head_dim));
      MadeUpLayers model(1, heads, dtype);
      const PagedShape shape{kBlocks, kBlockSize, model.bytes_per_token()};
      Open<CudaPagedKvStore> paged(model.config(), shape, dtype, {AttentionPath::paged, DebugFill::nan},
                                   device());
      Open<CudaPagedKvStore> gathered(model.config(), shape, dtype, {AttentionPath::gather, DebugFill::nan},
                                      device());
      const std::int64_t pool_bytes = kBlocks * paged.block_bytes();
      for (const auto* store : {&paged, &gathered}) {  // what no pass writes is the same in both
        for (std::byte* pool : {store->k_block(0, 0), store->v_block(0, 0)})
          cuda::check(cudaMemsetAsync(pool, 0, static_cast<std::size_t>(pool_bytes), stream()), "a test");
      }
      const auto numbers = [&](std::int64_t rows, std::int64_t cols) {
        Matrix matrix = MadeUpLayers::matrix_of(rows, cols);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t col = 0; col < cols; ++col)
            matrix.row(row)[col] = static_cast<float>(random_() % 2001) / 1000 - 1;
        }
        return matrix;
      };
      const Matrix norms = matrix_on_gpu(numbers(2, heads.head_dim), dtype, device());
      const auto norm = [&](std::int64_t row) {
        return Norm{{dtype, 1, heads.head_dim,
                     static_cast<std::byte*>(norms.data) + row * norms.stride * size_of(dtype)},
                    1e-6F};
      };
      const Matrix angles = matrix_on_gpu(numbers(2, kMostRows * heads.head_dim / 2), DType::f32, device());
      const auto* cosines = static_cast<const float*>(angles.data);
      const HeadSettings settings{norm(0), norm(1), {cosines, cosines + angles.stride}};

      PagedManager manager(shape);
      const std::vector<std::int32_t> ids(kLast);
      // Prefill; decode across the border of a block, of a tile of keys and of a part; a longer row.
      const std::vector<std::vector<std::int64_t>> passes{
          {1, 15, 254, kLast - 3}, {2, 16, 255, kLast - 2}, {3, 17, 256, kLast - 1}, {4, 18, 257, kLast}};
      for (const std::vector<std::int64_t>& lengths : passes) {
        std::vector<Work> work;
        for (std::int32_t sequence = 0; sequence < kSequences; ++sequence)
          work.push_back({sequence, std::span(ids).first(static_cast<std::size_t>(
                                        lengths[static_cast<std::size_t>(sequence)]))});
        const PassPlan plan = manager.plan(work).value();
        const Matrix q = numbers(plan.tokens(), model.q_width()),
                     k = numbers(plan.tokens(), model.kv_width());
        Matrix v = numbers(plan.tokens(), model.kv_width());
        v.row(plan.tokens() - 1)[0] = plan.tokens() == kSequences ? kNan : 1;  // kept to itself
        const auto through = [&](KvStore& store) {
          Matrix own_q = matrix_on_gpu(q, dtype, device()), own_k = matrix_on_gpu(k, dtype, device());
          const Matrix own_v = matrix_on_gpu(v, dtype, device());
          Matrix out = matrix_on_gpu(q, dtype, device());
          store.begin(plan);
          store.store_and_attend(0, settings, {own_q, own_k, own_v}, out);
          store.end();
          return rows_of(out, plan.tokens(), dtype, device());
        };
        EXPECT_TRUE(through(paged) == through(gathered));
        manager.commit(plan);
        EXPECT_TRUE(from_gpu(paged.k_block(0, 0), pool_bytes) == from_gpu(gathered.k_block(0, 0), pool_bytes))
            << "K";
        EXPECT_TRUE(from_gpu(paged.v_block(0, 0), pool_bytes) == from_gpu(gathered.v_block(0, 0), pool_bytes))
            << "V";
      }
    }
  }
}

/// What becomes of a decoding row: its answer, and the K and V that are kept of it.
struct Decoded {
  Bytes answer, k, v;
  bool operator==(const Decoded&) const = default;
};

/// One layer with norms and rotation, and sequences whose last token is decoded in batches of any kind.
class OneLayer {
 public:
  OneLayer(const AttentionShape& heads, DType dtype, const std::vector<std::int32_t>& contexts,
           std::mt19937& random, const cuda::Device& device)
      : model_(1, heads, dtype),
        dtype_(dtype),
        half_(heads.head_dim / 2),
        contexts_(contexts),
        device_(device) {
    const auto numbers = [&](std::int64_t rows, std::int64_t cols) {
      Matrix matrix = MadeUpLayers::matrix_of(rows, cols);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t col = 0; col < cols; ++col)
          matrix.row(row)[col] = static_cast<float>(random() % 2001) / 1000 - 1;
      }
      return matrix;
    };
    norms_ = matrix_on_gpu(numbers(2, heads.head_dim), dtype, device);
    for (const std::int32_t context : contexts) {
      q_.push_back(numbers(context, model_.q_width()));
      k_.push_back(numbers(context, model_.kv_width()));
      v_.push_back(numbers(context, model_.kv_width()));
    }
  }

  /// Decodes the last token of each sequence of `batch` in one pass.
  /// @param order  seed for the ids of the blocks
  std::vector<Decoded> decode(const std::vector<std::int32_t>& batch, std::int64_t block_size,
                              std::uint32_t order) {
    std::vector<std::vector<std::int32_t>> tables;
    std::int64_t blocks = 1;  // block 0 is nobody's
    for (const std::int32_t sequence : batch) {
      tables.emplace_back(static_cast<std::size_t>((context_of(sequence) - 1) / block_size + 1));
      blocks += std::ssize(tables.back());
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks - 1));
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(order));
    for (std::vector<std::int32_t>& table : tables) {
      for (std::int32_t& block : table) {
        block = ids.back();
        ids.pop_back();
      }
    }
    const PagedShape shape{blocks, block_size, model_.bytes_per_token()};
    Open<CudaPagedKvStore> store(model_.config(), shape, dtype_, {AttentionPath::paged, DebugFill::nan},
                                 device_);
    PassPlan last;
    std::vector<const std::vector<std::int32_t>*> rows_of_table;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(context_of(batch[n])));
      PassPlan earlier;
      earlier.fresh_blocks = tables[n];
      earlier.add(batch[n], std::span(tokens).first(tokens.size() - 1), 0);
      earlier.add_slots(tables[n], block_size);
      rows_of_table = {&tables[n]};
      earlier.set_block_table(rows_of_table);
      send(earlier, store);
      last.add(batch[n], tokens, context_of(batch[n]) - 1);
      last.add_slots(tables[n], block_size);
    }
    rows_of_table.clear();
    for (const std::vector<std::int32_t>& table : tables) rows_of_table.push_back(&table);
    last.set_block_table(rows_of_table);
    const Bytes answers = send(last, store);

    const std::int64_t answer_bytes = model_.q_width() * size_of(dtype_);
    std::vector<Decoded> decoded;
    for (std::int64_t row = 0; row < last.tokens(); ++row) {
      const auto answer = answers.begin() + row * answer_bytes;
      const std::int64_t slot = last.slots[static_cast<std::size_t>(row)];
      decoded.push_back({Bytes(answer, answer + answer_bytes), kept(store.k_block(0, 0), slot),
                         kept(store.v_block(0, 0), slot)});
    }
    return decoded;
  }

 private:
  std::int32_t context_of(std::int32_t sequence) const {
    return contexts_[static_cast<std::size_t>(sequence)];
  }
  /// K or V of one slot.
  Bytes kept(const std::byte* pool, std::int64_t slot) const {
    Bytes bytes(static_cast<std::size_t>(model_.kv_width() * size_of(dtype_)));
    cuda::check(cudaMemcpyAsync(bytes.data(), pool + slot * std::ssize(bytes), bytes.size(),
                                cudaMemcpyDeviceToHost, device_.stream()),
                "copying from the GPU");
    device_.synchronize();
    return bytes;
  }
  /// Sends a pass through the store. @return its answers, row after row
  Bytes send(const PassPlan& plan, KvStore& store) {
    const auto rows_of_pass = [&](const std::vector<Matrix>& of) {
      Matrix rows = MadeUpLayers::matrix_of(plan.tokens(), of[0].cols);
      for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
        const Matrix& from = of[static_cast<std::size_t>(plan.sequences[s])];
        for (std::int32_t row = plan.row_begin[s]; row < plan.row_begin[s + 1]; ++row)
          std::copy_n(from.row(plan.positions[static_cast<std::size_t>(row)]), rows.cols, rows.row(row));
      }
      return matrix_on_gpu(rows, dtype_, device_);
    };
    std::vector<float> cosines, sines;
    for (const std::int32_t position : plan.positions) {
      for (std::int64_t d = 0; d < half_; ++d) {
        const float angle = static_cast<float>(position) / static_cast<float>(d + 1);
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    cuda::Upload<float> gpu_cosines, gpu_sines;
    const auto norm = [&](std::int64_t row) {
      const auto* first = static_cast<const std::byte*>(norms_.data) + row * norms_.stride * size_of(dtype_);
      return Norm{{dtype_, 1, norms_.cols, first}, 1e-6F};
    };
    const HeadSettings heads{
        norm(0), norm(1), {gpu_cosines(cosines, device_.stream()), gpu_sines(sines, device_.stream())}};
    Matrix q = rows_of_pass(q_), k = rows_of_pass(k_), out = rows_of_pass(q_);
    const Matrix v = rows_of_pass(v_);
    store.begin(plan);
    store.store_and_attend(0, heads, {q, k, v}, out);
    store.end();
    return rows_of(out, plan.tokens(), dtype_, device_);
  }

  MadeUpLayers model_;
  DType dtype_;
  std::int64_t half_;  // pairs of a head
  std::vector<std::int32_t> contexts_;
  const cuda::Device& device_;
  Matrix norms_;                   // [2, head_dim] of q and of k
  std::vector<Matrix> q_, k_, v_;  // [sequences][context, heads or kv_heads, head_dim]
};

/// In f16 and bf16, heads of 64 and 128 are made ready, kept and attended to by one kernel; others by four.
TEST_F(CudaPagedKvStoreTest, ADecodedRowHasTheSameBitsInEveryBatchAndWhereverItsBlocksLie) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (!has(dtype)) continue;
    for (const AttentionShape heads : {AttentionShape{6, 2, 64}, {20, 1, 128}, {4, 2, 32}, {4, 2, 80}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", head_dim " + std::to_string(heads.head_dim));
      OneLayer layer(heads, dtype, {2, 17, 258, 530}, random_, device());  // 1 to 3 parts
      const std::vector<Decoded> right = layer.decode({0, 1, 2, 3}, 16, 1);
      for (std::int32_t sequence = 0; sequence < 4; ++sequence) {
        EXPECT_TRUE(layer.decode({sequence}, 16, 2)[0] == right[static_cast<std::size_t>(sequence)])
            << "sequence " << sequence << " alone";
      }
      for (const std::int64_t block_size : {1, 7, 17, 32, 48, 128}) {
        const std::vector<Decoded> other = layer.decode({3, 0, 2, 1}, block_size, 3);
        EXPECT_TRUE(other[0] == right[3] && other[1] == right[0] && other[2] == right[2] &&
                    other[3] == right[1])
            << "block size " << block_size;
      }
    }
  }
}

// KN8.
TEST_F(CudaPagedKvStoreTest, PrefillsOfEveryLengthAgreeForEveryNumberOfKvHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3, 8}) {
    MadeUpLayers layers = made_up(1, 130, 1, {8 / kv_heads * kv_heads, kv_heads, 8});
    PagedCache cache(layers, 9, 16, device());
    for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130}) {
      SCOPED_TRACE(std::to_string(kv_heads) + " K/V heads, length " + std::to_string(length));
      cache.pass({{0, length}});
      cache.manager.free(0);
    }
    cache.stores.expect_same_pools();
  }
}

// KN1: pools full of NaN, or of keys so large that they would take the whole softmax.
TEST_F(CudaPagedKvStoreTest, TheUnusedSlotsOfTheLastBlockTakeNoPart) {
  for (const std::int64_t block_size : {1, 4, 7}) {
    MadeUpLayers layers = made_up(2, 3 * block_size + 2, 1);
    for (const float value : {kNan, 6e4F}) {
      PagedCache cache(layers, 8, block_size, device());
      for (std::int64_t length = 1; length <= 3 * block_size; ++length) {
        cache.stores.spoil(value);
        cache.pass({{0, length}, {1, 3 * block_size + 1 - length}});
        cache.pass({{1, 3 * block_size + 2 - length}, {0, length + 1}});
        cache.manager.free(0);
        cache.manager.free(1);
      }
      cache.stores.expect_same_pools();
    }
  }
}

TEST_F(CudaPagedKvStoreTest, FreshBlocksAreFilledAsOnTheCpuAndNoAnswerChanges) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (!has(dtype)) continue;
    MadeUpLayers layers = made_up(2, 40, 2, {4, 2, 16}, dtype);
    for (const DebugFill fill : {DebugFill::none, DebugFill::nan, DebugFill::huge}) {
      PagedCache cache(layers, 12, 4, device(), fill, dtype);
      cache.pass({{0, 5}, {1, 4}});
      cache.pass({{0, 6}, {1, 5}});
      cache.stores.expect_same_pools();
      cache.pass({{1, 13}, {0, 7}});
      cache.manager.free(1);
      cache.pass({{0, 40}});
      cache.stores.expect_same_pools();
    }
  }
}

// KN2.
TEST_F(CudaPagedKvStoreTest, PaddingRowsAreWrittenNowhere) {
  MadeUpLayers layers = made_up(3, 20);
  for (const std::int64_t padding : {1, 4, 5}) {
    for (const std::int64_t longer : {1, 3}) {  // the slots of decode steps are made on the GPU
      PagedCache cache(layers, 12, 4, device());
      cache.pass({{0, 20}, {1, 8}, {2, 12}});  // every block but two has an owner, the first among them
      PassPlan plan = cache.plan({{1, 8 + longer}, {2, 12 + longer}}).value();
      ASSERT_EQ(cache.manager.blocks().free, 0);
      add_padding(plan, padding);
      layers.send(cache.stores, plan);
      cache.stores.expect_same_pools();
    }
  }
}

// KN5.
TEST_F(CudaPagedKvStoreTest, TableEntriesBeyondTheContextAreNeverFollowed) {
  MadeUpLayers layers = made_up(3, 60);
  for (const std::int32_t garbage : {-1, std::numeric_limits<std::int32_t>::max(), 29}) {
    PagedCache cache(layers, 30, 4, device());
    cache.stores.spoil(kNan);  // block 29 among them
    cache.pass({{0, 41}, {1, 4}, {2, 7}});
    PassPlan plan = cache.plan({{0, 42}, {1, 5}, {2, 8}}).value();
    ASSERT_EQ(plan.table_width, 16);
    set_unused_entries(plan, 4, garbage);
    layers.send(cache.stores, plan);
  }
}

TEST_F(CudaPagedKvStoreTest, ABlockIsCopiedInEveryLayerBeforeThePassWrites) {
  MadeUpLayers layers = made_up(1, 20, 3);
  PagedCache cache(layers, 6, 4, device());
  cache.pass({{0, 6}});
  // The partial last block moves to block 5, and the next token goes there.
  PassPlan plan = cache.plan({{0, 7}}).value();
  plan.copies.push_back({1, 5});
  plan.block_table = {0, 5};
  plan.slots = {5 * 4 + 2};
  layers.send(cache.stores, plan);
  cache.stores.expect_same_pools();
}

// KN4: more than 2^31 numbers in a layer, and layers further apart than one copy can step over. Attention
// runs on tensor cores with heads of 64 and 128.
TEST_F(CudaPagedKvStoreTest, TheHighestBlocksOfAHugePoolHoldTheirOwnRowsAndAreCopied) {
  constexpr std::int64_t kNumbers = 2'150'000'000, kBlockSize = 64;  // of K in one layer
  static_assert(kNumbers > (std::int64_t{1} << 31));
  constexpr std::int64_t kPoolBytes = kNumbers * 2 * 2 * 2;  // K and V, two layers, f16
  if (device().free_memory() < 2 * kPoolBytes + (1 << 30)) GTEST_SKIP() << "needs 35 GB of the GPU's memory";
  const std::vector<std::int32_t> ids(2 * kBlockSize + 5);
  for (const std::int64_t head_dim : {16, 64, 128}) {
    MadeUpLayers layers = made_up(1, std::ssize(ids), 2, {2, 1, head_dim}, DType::f16);
    const auto blocks = static_cast<std::int32_t>(kNumbers / (kBlockSize * head_dim) + 1);
    const PagedShape shape{blocks, kBlockSize, layers.bytes_per_token()};
    TwinStores stores(layers, shape, DType::f16, DebugFill::nan, device());
    for (const std::int32_t first : {0, 65'535, blocks - 4}) {
      SCOPED_TRACE("heads of " + std::to_string(head_dim) + ", blocks from " + std::to_string(first));
      const std::vector<std::int32_t> table{first + 2, first, first + 1};
      PassPlan plan;
      plan.add(0, ids, 0);
      plan.fresh_blocks = table;
      plan.add_slots(table, kBlockSize);
      const std::vector<std::int32_t>* rows[] = {&table};
      plan.set_block_table(rows);
      layers.send(stores, plan);
      // The last token is decoded once more.
      PassPlan decode;
      decode.add(0, ids, static_cast<std::int32_t>(ids.size()) - 1);
      decode.add_slots(table, kBlockSize);
      decode.set_block_table(rows);
      layers.send(stores, decode);
      // The first block is copied behind the others, and its last token written again there.
      PassPlan copying;
      copying.add(0, std::span(ids).first(kBlockSize), kBlockSize - 1);
      copying.copies = {{table[0], first + 3}};
      const std::vector<std::int32_t> copied{first + 3};
      copying.add_slots(copied, kBlockSize);
      const std::vector<std::int32_t>* copied_rows[] = {&copied};
      copying.set_block_table(copied_rows);
      layers.send(stores, copying);
      stores.expect_same_blocks(first, 4);
    }
    stores.expect_same_blocks(0, 4);
  }
}

TEST_F(CudaPagedKvStoreTest, ManySequencesThatComeGrowAndGoAlwaysAgree) {
  MadeUpLayers layers = made_up(6, 48, 1);
  PagedCache cache(layers, 40, 3, device(), DebugFill::nan);
  come_grow_and_go(layers, cache.manager, cache.stores, random_, 100);
  cache.stores.expect_same_pools();
}

// SW7: what a pass sends to the GPU must not be overwritten by the next one before it is there.
TEST_F(CudaPagedKvStoreTest, TwoBatchesInTurnWithoutEverWaitingHaveTheAnswersOfWaitingEachTime) {
  constexpr std::int64_t kPasses = 1000, kMostRows = 8, kTokens = 60;
  MadeUpLayers model = made_up(0, 0, 1);
  const PagedShape shape{80, 4, model.bytes_per_token()};

  // Sequences 0 and 1, then 2 and 3, in turn; one grows by a token, the other now and then by several.
  PagedManager manager(shape);
  const std::vector<std::int32_t> ids(kTokens);
  std::vector<PassPlan> plans;
  for (std::int64_t pass = 0; pass < kPasses; ++pass) {
    std::vector<Work> work;
    const auto first = static_cast<std::int32_t>(pass % 2 * 2);
    for (const std::int32_t sequence : {first, first + 1}) {
      const std::int64_t more = sequence % 2 == 1 && random_() % 4 == 0 ? 1 + random_() % 6 : 1;
      std::int64_t length = manager.length(sequence) + more;
      if (length > kTokens) {
        manager.free(sequence);
        length = 1;
      }
      work.push_back({sequence, std::span(ids).first(static_cast<std::size_t>(length))});
    }
    plans.push_back(manager.plan(work).value());
    manager.commit(plans.back());
  }

  Matrix numbers = MadeUpLayers::matrix_of(kPasses + kMostRows, model.q_width() + 2 * model.kv_width());
  for (std::int64_t row = 0; row < numbers.rows; ++row) {
    for (std::int64_t col = 0; col < numbers.cols; ++col)
      numbers.row(row)[col] = static_cast<float>(random_() % 2001) / 1000 - 1;
  }
  const Matrix qkv = matrix_on_gpu(numbers, DType::f32, device());  // [row, (q, k, v)]
  const auto part = [&](std::int64_t pass, std::int64_t col, std::int64_t cols) {
    Matrix matrix = qkv;
    matrix.data = static_cast<float*>(qkv.data) + pass * qkv.stride + col;
    matrix.rows = plans[static_cast<std::size_t>(pass)].tokens();
    matrix.cols = cols;
    return matrix;
  };
  for (const AttentionPath path : {AttentionPath::paged, AttentionPath::gather}) {
    const auto answers = [&](bool wait) {
      CudaPagedKvStore store(model.config(), shape, DType::f32, {.attention = path}, device());
      Matrix out =
          matrix_on_gpu(MadeUpLayers::matrix_of(kPasses * kMostRows, model.q_width()), DType::f32, device());
      for (std::int64_t pass = 0; pass < kPasses; ++pass) {
        store.begin(plans[static_cast<std::size_t>(pass)]);
        Matrix q = part(pass, 0, model.q_width()), k = part(pass, model.q_width(), model.kv_width());
        const Matrix v = part(pass, model.q_width() + model.kv_width(), model.kv_width());
        Matrix rows = out;
        rows.data = static_cast<float*>(out.data) + pass * kMostRows * out.stride;
        store.store_and_attend(0, {}, {q, k, v}, rows);
        store.end();
        if (wait) device().synchronize();
      }
      return rows_of(out, out.rows, DType::f32, device());
    };
    EXPECT_TRUE(answers(false) == answers(true));
  }
}

}  // namespace
}  // namespace kvcache
