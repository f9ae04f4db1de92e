/// @file
/// See times.h.
#include "docs/numbers/times.h"

#include <algorithm>
#include <numeric>

#include "docs/numbers/experiments.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

double median_pass_ms(const nlohmann::json& report) {
  auto times = report["timing"]["decode_pass_ms"].get<std::vector<double>>();
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

DecodeTimes time_load(const std::string& device, std::int64_t sequences, std::int64_t context) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(context));
  std::iota(ids.begin(), ids.end(), 1);
  const std::string shape = device == "cuda" ? "qwen3-0.6b" : "fairytale";
  std::vector<std::string> common = {"--device", device, "--random-weights", shape, "--tokens", "33"};
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    common.emplace_back("--ids");
    common.push_back(fmt::format("{}", fmt::join(ids, ",")));
  }
  const auto best = [&](double best_ms, const std::string& step, std::vector<std::string> more) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::min(best_ms, median_pass_ms(report_of_step(step, arguments)));
  };
  DecodeTimes times{sequences, context, 1e9, 1e9, 1e9};
  for (int turn = 0; turn < 5; ++turn) {
    times.flat_ms = best(times.flat_ms, "step2_flat_cache", {"--max-seq-len", std::to_string(context + 32)});
    times.gather_ms = best(times.gather_ms, "step3_paged", {"--attention", "gather"});
    times.paged_ms = best(times.paged_ms, "step3_paged", {"--attention", "paged"});
  }
  return times;
}

}  // namespace

std::vector<DecodeTimes> decode_times(const std::string& device) {
  return {time_load(device, 1, 42), time_load(device, 4, 512), time_load(device, 1, 2048)};
}

}  // namespace kvcache
