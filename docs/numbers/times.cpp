/// @file
/// See times.h.
#include "docs/numbers/times.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/cli/machine.h"
#include "docs/numbers/experiments.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

constexpr int kTurns = 5;

/// The options of a load that all steps get.
std::vector<std::string> requests_of(const std::string& device, std::int64_t sequences,
                                     std::int64_t context) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(context));
  std::iota(ids.begin(), ids.end(), 1);
  const std::string shape = device == "cuda" ? "qwen3-0.6b" : "fairytale";
  std::vector<std::string> arguments = {"--device", device, "--random-weights", shape, "--tokens", "33"};
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    arguments.emplace_back("--ids");
    arguments.push_back(fmt::format("{}", fmt::join(ids, ",")));
  }
  return arguments;
}

/// Runs a step and notes its median pass, in ms, and the threads it had.
double run_once(const std::string& step, std::vector<std::string> arguments, const std::string& option,
                const std::string& value, int& threads) {
  arguments.insert(arguments.end(), {option, value});
  const nlohmann::json report = report_of_step(step, std::move(arguments));
  threads = report.at("threads");
  return turns_of(report.at("timing").at("decode_pass_ms")).median;
}

DecodeTimes time_load(const std::string& device, std::int64_t sequences, std::int64_t context, int& threads) {
  const std::vector<std::string> requests = requests_of(device, sequences, context);
  const std::string reservation = std::to_string(context + 32);
  std::vector<double> flat, gather, paged, gather_ratio, paged_ratio;
  for (int turn = 0; turn < kTurns; ++turn) {
    flat.push_back(run_once("step2_flat_cache", requests, "--max-seq-len", reservation, threads));
    gather.push_back(run_once("step3_paged", requests, "--attention", "gather", threads));
    paged.push_back(run_once("step3_paged", requests, "--attention", "paged", threads));
    gather_ratio.push_back(gather.back() / flat.back());
    paged_ratio.push_back(paged.back() / flat.back());
  }
  return {sequences,
          context,
          turns_of(flat),
          turns_of(gather),
          turns_of(paged),
          turns_of(gather_ratio),
          turns_of(paged_ratio)};
}

}  // namespace

Turns turns_of(std::vector<double> figures) {
  std::ranges::sort(figures);
  return {figures[figures.size() / 2], figures.front(), figures.back()};
}

MachineTimes decode_times(const std::string& device) {
  MachineTimes times{.device = device, .processor = "", .threads = 0, .date = "", .loads = {}};
  for (const auto& [sequences, context] : {std::pair(1, 42), std::pair(4, 512), std::pair(1, 2048)})
    times.loads.push_back(time_load(device, sequences, context, times.threads));
  times.processor = processor_name(device);
  times.date = today();
  return times;
}

}  // namespace kvcache
