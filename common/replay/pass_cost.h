/// @file
/// How long a pass takes, as a formula: of its rows, of the pairs of tokens in its attention, of the K and V
/// that it reads. It is fitted to passes that were timed, or it is the roofline of a card. Described in
/// docs/replay.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/kv/pass_plan.h"
#include "common/model/config.h"

namespace kvcache {

/// What a pass has to do.
struct PassWork {
  std::int64_t rows = 0;     ///< tokens that go through the model
  std::int64_t pairs = 0;    ///< of a row and a position that it attends to
  std::int64_t context = 0;  ///< tokens of all its sequences: their K and V are read
  std::int64_t swapped = 0;  ///< blocks that move between the pool and the host tier

  bool operator==(const PassWork&) const = default;  ///< whether all of it is the same
};

/// The work of a planned pass.
PassWork work_of(const PassPlan& plan);

/// Milliseconds of a pass. The parts are added: the layers' products and attention come one after the other.
/// Only in a product is reading the weights hidden behind computing the rows, or computing behind reading.
struct PassCost {
  double constant_ms = 0;      ///< of every pass: its start, and in a fitted cost reading the weights
  double row_ms = 0;           ///< for each of its rows
  double weights_ms = 0;       ///< of reading the weights; the longer of this and all rows counts
  double pair_ms = 0;          ///< for each of its pairs
  double context_ms = 0;       ///< for each token of its context
  double swap_ms = 0;          ///< for each block swapped
  std::string fitted_on = {};  ///< of a fitted cost: the model and the processor whose passes were timed

  /// The time of a pass.
  double of(const PassWork& work) const;
};

/// What a card does at most.
struct Card {
  std::string name;         ///< as given with --card
  double matrix_flops = 0;  ///< multiplications and additions of bf16 per second, dense
  double memory_bytes = 0;  ///< read per second
  double host_bytes = 0;    ///< moved per second to the host, one way
};

// The parts of it that passes take, set to this project's kernels on an H200 (docs/replay.md).
inline constexpr double kMatrixShare = 0.62;     ///< of matrix_flops: products of many rows
inline constexpr double kAttentionShare = 0.26;  ///< of matrix_flops: attention in a prefill
inline constexpr double kMemoryShare = 0.74;     ///< of memory_bytes: a decode pass
inline constexpr double kOverheadMs = 0.4;       ///< of a pass: starting its kernels, choosing ids

/// The card of this name.
/// @throws InputError that lists the names, for an unknown one.
Card named_card(const std::string& name);

/// The roofline of `card` for a model, with the shares above.
/// @param bytes_per_number  of weights, K and V
PassCost roofline(const Card& card, const ModelConfig& model, std::int64_t bytes_per_number,
                  std::int64_t block_size);

/// One pass that was timed.
struct TimedPass {
  PassWork work;  ///< what it did
  double ms = 0;  ///< how long it took
};

/// The cost that is nearest to the times of `passes`; no part of it is negative.
/// @throws InputError for fewer than 8 passes.
PassCost fitted_cost(std::span<const TimedPass> passes);

/// A fitted cost as a JSON object, for read_cost.
std::string to_json(const PassCost& cost);
/// Reads a cost: a JSON object with constant_ms, row_ms, pair_ms and context_ms, as serve-bench writes it
/// with --cost. A file for replays with a host tier has
/// swap_ms, too; that of a roofline has weights_ms.
/// @throws InputError naming the file and what is wrong in it.
PassCost read_cost(const std::filesystem::path& path);

}  // namespace kvcache
