/// @file
/// See pass_cost.h.
#include "common/replay/pass_cost.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <iterator>
#include <vector>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace kvcache {
namespace {

/// The parts of a fitted cost, in the order of its columns.
constexpr struct {
  const char* name;
  double PassCost::*ms;
} kParts[] = {{"constant_ms", &PassCost::constant_ms},
              {"row_ms", &PassCost::row_ms},
              {"pair_ms", &PassCost::pair_ms},
              {"context_ms", &PassCost::context_ms}};
constexpr std::size_t kLeastPasses = 8;  // twice the parts
constexpr double kMostMs = 1e6;          // of a part, in a file

/// The weights of all layers' products.
double layer_weights(const ModelConfig& model) {
  const std::int64_t attention = 2 * model.heads * model.head_dim + 2 * model.kv_width();
  const std::int64_t mlp = 3 * model.intermediate_size;
  return static_cast<double>(model.layers * model.hidden_size * (attention + mlp));
}

/// A pass's amount of each of kParts.
Eigen::Vector4d amounts_of(const PassWork& work) {
  return {1, static_cast<double>(work.rows), static_cast<double>(work.pairs),
          static_cast<double>(work.context)};
}

/// The parts that are nearest to the times, none of them negative. That fit is the plain least squares of
/// some of the four parts, the others being 0, so all choices of them are tried.
/// @param amounts  [passes, parts]
/// @param times    [passes]
Eigen::Vector4d nearest_parts(const Eigen::MatrixX4d& amounts, const Eigen::VectorXd& times) {
  Eigen::Vector4d best = Eigen::Vector4d::Zero();
  double least = times.squaredNorm();
  constexpr unsigned kChoices = 1U << std::size(kParts);
  for (unsigned choice = 1; choice < kChoices; ++choice) {
    std::vector<Eigen::Index> parts;
    for (Eigen::Index part = 0; part < 4; ++part) {
      if ((choice >> part & 1U) != 0) parts.push_back(part);
    }
    const Eigen::VectorXd fit = amounts(Eigen::all, parts).colPivHouseholderQr().solve(times);
    if (fit.minCoeff() < 0) continue;
    Eigen::Vector4d all = Eigen::Vector4d::Zero();
    all(parts) = fit;
    const double error = (amounts * all - times).squaredNorm();
    if (error >= least) continue;
    least = error;
    best = all;
  }
  return best;
}

}  // namespace

PassWork work_of(const PassPlan& plan) {
  PassWork work{.rows = plan.tokens()};
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const std::int64_t rows = plan.row_begin[s + 1] - plan.row_begin[s], context = plan.context_len[s];
    work.pairs += rows * context - rows * (rows - 1) / 2;  // the last row sees all, the one before one less
    work.context += context;
  }
  work.swapped = std::ssize(plan.swaps_in) + std::ssize(plan.swaps_out);
  return work;
}

double PassCost::of(const PassWork& work) const {
  const double products = std::max(row_ms * static_cast<double>(work.rows), weights_ms);
  const double attention =
      pair_ms * static_cast<double>(work.pairs) + context_ms * static_cast<double>(work.context);
  return constant_ms + products + attention + swap_ms * static_cast<double>(work.swapped);
}

Card named_card(const std::string& name) {
  // NVIDIA's data sheets of the A100 80GB SXM, the H100 SXM and the H200 SXM; to the host PCI Express 4 and 5
  // with 16 lanes.
  static const Card cards[] = {
      {"a100", 312e12, 2.039e12, 32e9}, {"h100", 989.4e12, 3.35e12, 64e9}, {"h200", 989.4e12, 4.8e12, 64e9}};
  std::string names;
  for (const Card& card : cards) {
    if (card.name == name) return card;
    names += (names.empty() ? "" : ", ") + card.name;
  }
  throw InputError(fmt::format("--card must be one of {}, not \"{}\"; or give the cost of a pass with --cost",
                               names, name));
}

PassCost roofline(const Card& card, const ModelConfig& model, std::int64_t bytes_per_number,
                  std::int64_t block_size) {
  const double flops_per_ms = card.matrix_flops / 1e3;
  const double bytes_per_ms = kMemoryShare * card.memory_bytes / 1e3;
  const auto bytes_of = [&](double numbers) { return numbers * static_cast<double>(bytes_per_number); };
  const auto kv_bytes = static_cast<double>(model.kv_bytes_per_token(bytes_per_number));
  const double head = static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden_size);
  return {.constant_ms = kOverheadMs,
          .row_ms = 2 * layer_weights(model) / (kMatrixShare * flops_per_ms),
          .weights_ms = bytes_of(layer_weights(model) + head) / bytes_per_ms,
          .pair_ms = 4 * static_cast<double>(model.layers * model.heads * model.head_dim) /
                     (kAttentionShare * flops_per_ms),
          .context_ms = kv_bytes / bytes_per_ms,
          .swap_ms = kv_bytes * static_cast<double>(block_size) / (card.host_bytes / 1e3)};
}

/// Least squares, in which a second of short passes counts as much as a second of long ones: each error is
/// divided by the root of its pass's time. The measured time would give weight to passes that chance made
/// short, and the cost would come out too low. So the fit is repeated with the times of the fit before.
PassCost fitted_cost(std::span<const TimedPass> passes) {
  if (passes.size() < kLeastPasses)
    throw InputError(
        fmt::format("a cost is fitted to at least {} passes, and there are {}", kLeastPasses, passes.size()));
  constexpr int kFits = 8;
  const auto count = static_cast<Eigen::Index>(passes.size());
  Eigen::MatrixX4d amounts(count, 4);
  Eigen::VectorXd times(count);
  for (Eigen::Index n = 0; n < count; ++n) {
    amounts.row(n) = amounts_of(passes[static_cast<std::size_t>(n)].work);
    times(n) = passes[static_cast<std::size_t>(n)].ms;
  }
  Eigen::VectorXd about = times;
  Eigen::Vector4d parts;
  for (int fit = 0; fit < kFits; ++fit) {
    const Eigen::VectorXd scale = about.cwiseSqrt().cwiseInverse();
    parts = nearest_parts(scale.asDiagonal() * amounts, scale.cwiseProduct(times));
    about = (amounts * parts).cwiseMax(times / 10);  // never 0
  }
  PassCost cost;
  for (Eigen::Index part = 0; part < 4; ++part) cost.*kParts[part].ms = parts(part);
  return cost;
}

std::string to_json(const PassCost& cost) {
  nlohmann::ordered_json json;
  json["fitted_on"] = cost.fitted_on;
  for (const auto& part : kParts) json[part.name] = cost.*part.ms;
  return json.dump(2) + "\n";
}

PassCost read_cost(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_file(path);
  if (!json.is_object()) throw InputError(fmt::format("{}: a cost is a JSON object", path.string()));
  PassCost cost;
  const auto read = [&](const char* name, double& ms) {
    const nlohmann::json& value = json[name];
    if (!value.is_number() || value < 0 || value > kMostMs)
      throw InputError(fmt::format("{}: \"{}\" is {}; it must be a number of milliseconds from 0 to {}",
                                   path.string(), name, shown(value), kMostMs));
    ms = value;
  };
  for (const auto& part : kParts) {
    if (!json.contains(part.name))
      throw InputError(fmt::format("{}: \"{}\" is missing; ./steps serve-bench --cost FILE writes a cost",
                                   path.string(), part.name));
    read(part.name, cost.*part.ms);
  }
  if (json.contains("swap_ms")) read("swap_ms", cost.swap_ms);
  if (json.contains("weights_ms")) read("weights_ms", cost.weights_ms);
  if (json.contains("fitted_on") && json["fitted_on"].is_string()) cost.fitted_on = json["fitted_on"];
  if (cost.of({.rows = 1, .pairs = 1, .context = 1}) <= 0)
    throw InputError(
        fmt::format("{}: a pass takes no time at all; one of its numbers must be above 0", path.string()));
  return cost;
}

}  // namespace kvcache
