/// @file
/// See for_replay.h.
#include "step4_prefix_cache/bench/for_replay.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "common/base/error.h"
#include "common/cli/machine.h"
#include "common/cli/option_values.h"
#include "fmt/format.h"
#include "step4_prefix_cache/bench/timed_engine.h"

namespace kvcache {
namespace {

constexpr std::string_view kOwnOptions[] = {"--cost", "--traffic", "--trace-block", "--max-batch-tokens"};
constexpr std::int64_t kSequences = 16;                    // of a served trace at a time, as in a server
constexpr std::int64_t kRowsOnCpu = 64, kRowsOnGpu = 256;  // of its passes, as in a server

/// @throws InputError if the file of --cost cannot be written, or is the trace. What stands in it stays.
void check_cost_file(const ForReplay& asked) {
  std::error_code error;
  if (!asked.traffic.empty() && std::filesystem::equivalent(asked.cost, asked.traffic, error))
    throw InputError(
        fmt::format("--cost {} is the trace that --traffic reads; give another file", asked.cost));
  const bool is_new = !std::filesystem::exists(std::filesystem::symlink_status(asked.cost, error));
  if (!std::ofstream(asked.cost, std::ios::app))
    throw InputError(fmt::format("--cost {}: {}", asked.cost, std::strerror(errno)));
  if (is_new) std::filesystem::remove(asked.cost, error);
}

/// Fits the cost of a pass to `passes` and writes it.
void write_cost(const Program& program, std::span<const TimedPass> passes, const std::string& file) {
  PassCost cost = fitted_cost(passes);
  cost.fitted_on = fmt::format("{}, {}, {}, {} threads, {}", program.model_name, name_of(program.dtype),
                               program.gpu ? "cuda" : "cpu", program.threads->threads(),
                               processor_name(program.gpu ? "cuda" : "cpu"));
  std::vector<double> errors;
  double real_ms = 0, fitted_ms = 0;
  for (const TimedPass& pass : passes) {
    errors.push_back(100 * std::abs(cost.of(pass.work) / pass.ms - 1));
    real_ms += pass.ms;
    fitted_ms += cost.of(pass.work);
  }
  const std::string json = to_json(cost);
  std::ofstream out(file);
  if (!(out << json).flush()) throw RunError(fmt::format("--cost {}: {}", file, std::strerror(errno)));
  fmt::print(
      "the cost of {} passes is {:.1f}% of their time; half of them lie within {:.1f}%, nine tenths within "
      "{:.1f}%\n{}",
      passes.size(), 100 * fitted_ms / real_ms, spread_of(errors).median, spread_of(errors).p90, json);
}

/// Serves a trace for real, in step 4.
/// @return its passes
std::vector<TimedPass> serve_and_print(Program& program, const ForReplay& asked, std::int64_t rows,
                                       std::int64_t tokens) {
  const std::int64_t block_size = program.options.block_size;
  if (block_size < kLeastBlock || asked.trace_block % block_size != 0)
    throw InputError(
        fmt::format("--block-size {}: a trace is served in blocks of at least {} tokens that divide "
                    "--trace-block {}",
                    block_size, kLeastBlock, asked.trace_block));
  const Traffic traffic = read_traffic_file(asked.traffic, asked.trace_block);
  program.options.num_blocks = tokens / program.options.block_size;
  const ServedTraffic served =
      serve_traffic(program, traffic, asked.traffic, {.max_batch_tokens = rows, .max_sequences = kSequences});
  const Options& options = program.options;
  const std::string model = options.random_weights.empty() ? "--model " + options.model.string()
                                                           : "--shape " + options.random_weights;
  const auto three = [](const Spread& spread) -> std::string {
    if (spread.count == 0) return "-";
    return fmt::format("mean {:.2f}, median {:.2f}, 99% {:.2f} ms", spread.mean, spread.median, spread.p99);
  };
  fmt::print(
      "{} requests served for real in {:.2f} s, {} passes\nfirst token: {}\nnext tokens: {}\n"
      "found {} tokens of prompts; {} evictions, {} preemptions\n"
      "in virtual time: ./steps replay {} {} --trace-block {} --block-size {} --num-blocks {} "
      "--max-sequences {} "
      "--max-batch-tokens {} --dtype {} --cost FILE\n",
      traffic.requests.size(), served.seconds, served.passes.size(), three(served.first_token_ms),
      three(served.output_token_ms), served.found, served.counters.evictions, served.counters.preemptions,
      asked.traffic, model, asked.trace_block, block_size, *program.options.num_blocks, kSequences, rows,
      name_of(program.dtype));
  return served.passes;
}

}  // namespace

ForReplay take_options_for_replay(std::vector<char*>& line) {
  ForReplay found;
  std::vector<std::string> seen;
  for (std::size_t n = 1; n < line.size();) {
    const std::string_view word = line[n];
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (std::ranges::count(kOwnOptions, name) == 0) {
      ++n;
      continue;
    }
    const char* next = n + 1 < line.size() ? line[n + 1] : nullptr;
    if (equals == std::string_view::npos && (next == nullptr || looks_like_an_option(next)))
      throw needs_a_value(name, name == "--cost" || name == "--traffic" ? "FILE" : "N", next);
    const Given given{std::string(name),
                      std::string(equals == std::string_view::npos ? next : word.substr(equals + 1))};
    if (std::ranges::count(seen, name) > 0)
      throw InputError(fmt::format("{} is given twice; give it once", name));
    seen.emplace_back(name);
    if (name == "--trace-block") {
      found.trace_block = whole_number(given, 1, 1 << 20);
    } else if (name == "--max-batch-tokens") {
      found.max_batch_tokens = whole_number(given, kSequences, largest_count);
    } else {
      (name == "--cost" ? found.cost : found.traffic) = some_text(given);
    }
    const auto at = line.begin() + static_cast<std::ptrdiff_t>(n);
    line.erase(at, at + (equals == std::string_view::npos ? 2 : 1));
  }
  if (found.traffic.empty() && std::ranges::count(seen, "--trace-block") > 0)
    throw InputError("--trace-block needs --traffic, the trace of which it says the size of the blocks");
  if (!found.is_given() && found.max_batch_tokens)
    throw InputError("--max-batch-tokens needs --cost or --traffic; the other measurements set it");
  return found;
}

void measure(Program& program, const ForReplay& asked, std::int64_t tokens) {
  const std::int64_t rows = asked.max_batch_tokens.value_or(program.gpu ? kRowsOnGpu : kRowsOnCpu);
  if (!asked.cost.empty()) check_cost_file(asked);  // before minutes of measuring
  const std::vector<TimedPass> passes =
      asked.traffic.empty() ? timed_passes(program, rows) : serve_and_print(program, asked, rows, tokens);
  if (!asked.cost.empty()) write_cost(program, passes, asked.cost);
}

}  // namespace kvcache
