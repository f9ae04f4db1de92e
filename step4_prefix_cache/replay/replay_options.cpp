/// @file
/// See replay_options.h. One table holds the options, as in common/cli/options.cpp.
#include "step4_prefix_cache/replay/replay_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include "common/cli/option_values.h"
#include "common/cli/options.h"

namespace kvcache {
namespace {

struct Spec {
  std::string_view name;
  std::string_view value;  // the value's name in --help; empty: the option is a flag
  std::string_view help;
  void (*store)(ReplayOptions& options, const Given& given);
};

constexpr double most_of_a_sweep = 4096;  // 13 replays of each step
constexpr std::int64_t most_engines = 4096, most_tokens_of_a_block = 1 << 20;

/// "10GB..320GB" or "0.5..8": two values, each read by `value`, the first above 0 and not above the second.
Sweep range_of(const Given& given, Sweep::Of of, double (*value)(const Given&)) {
  const std::string_view text = given.value;
  const std::size_t equals = text.find('='), dots = text.find("..");
  const std::string_view first = text.substr(equals + 1, dots - equals - 1), last = text.substr(dots + 2);
  Sweep sweep{of, value({given.option, std::string(first)}), value({given.option, std::string(last)})};
  if (sweep.first <= 0 || sweep.first > sweep.last)
    throw given.must_be("a range whose first value is above 0 and not above its last");
  if (sweep.last / sweep.first > most_of_a_sweep)
    throw given.must_be(
        fmt::format("a range whose last value is at most {} times its first", most_of_a_sweep));
  return sweep;
}

Sweep sweep_of(const Given& given) {
  if (given.value.find("..") != std::string::npos && given.value.starts_with("kv-memory="))
    return range_of(given, Sweep::Of::kv_memory,
                    [](const Given& end) { return static_cast<double>(bytes(end)); });
  if (given.value.find("..") != std::string::npos && given.value.starts_with("rate="))
    return range_of(given, Sweep::Of::rate,
                    [](const Given& end) { return real_number(end, 1000, "a number from 0 to 1000"); });
  throw given.must_be("kv-memory=10GB..320GB or rate=0.5..8, with your own values");
}

/// "5s" or "800ms".
double milliseconds(const Given& given) {
  const std::string_view unit = given.value.ends_with("ms") ? "ms" : "s";
  const InputError wrong = given.must_be("a time above 0, as 5s or 800ms");
  if (!given.value.ends_with(unit)) throw wrong;
  const std::string number = given.value.substr(0, given.value.size() - unit.size());
  try {
    const double time = real_number({given.option, number}, 1e9, "");
    if (time > 0) return unit == "ms" ? time : time * 1e3;
  } catch (const InputError&) {  // it would name the number without its unit
  }
  throw wrong;
}

// clang-format off
const Spec table[] = {
    {"--trace-block", "N", "tokens for each of the trace's hash ids (default: 512)",
     [](ReplayOptions& options, const Given& given) { options.trace_block = whole_number(given, 1, most_tokens_of_a_block); }},
    {"--shape", "NAME", "the model, as llama-3.1-8b or qwen3-0.6b (default: llama-3.1-8b)",
     [](ReplayOptions& options, const Given& given) { options.model = named_config(options.shape = some_text(given)); }},
    {"--model", "DIR", "the model, by a folder with its config.json; needs no weights",
     [](ReplayOptions& options, const Given& given) { options.model = read_config(options.shape = some_text(given)); }},
    {"--dtype", "f32|f16|bf16", "type of weights, K and V (default: bf16)",
     [](ReplayOptions& options, const Given& given) {
       options.dtype = one_of<DType>(given, {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}});
     }},
    {"--kv-memory", "SIZE", "K and V of each engine, as 40GB (default: 40GB)",
     [](ReplayOptions& options, const Given& given) { options.kv_memory = bytes(given); }},
    {"--num-blocks", "N", "the same in blocks; step 2 gets as many tokens",
     [](ReplayOptions& options, const Given& given) { options.num_blocks = whole_number(given, 1, largest_count); }},
    {"--block-size", "N", "tokens per block; divides --trace-block (default: 16)",
     [](ReplayOptions& options, const Given& given) { options.block_size = whole_number(given, 1, most_tokens_of_a_block); }},
    {"--host-memory", "SIZE", "step 4's host tier, as 100GB (default: none)",
     [](ReplayOptions& options, const Given& given) { options.host_memory = bytes(given); }},
    {"--max-seq-len", "N", "tokens that step 2 reserves for each sequence (default: the trace's longest request)",
     [](ReplayOptions& options, const Given& given) { options.max_seq_len = whole_number(given, 1, largest_count); }},
    {"--max-sequences", "N", "sequences that run at a time (default: 256)",
     [](ReplayOptions& options, const Given& given) { options.max_sequences = whole_number(given, 1, 65536); }},
    {"--max-batch-tokens", "N", "rows of a pass at most (default: 2048)",
     [](ReplayOptions& options, const Given& given) { options.max_batch_tokens = whole_number(given, 1, largest_count); }},
    {"--card", "NAME", "the cost of a pass is the roofline of a100, h100 or h200 (default: h100)",
     [](ReplayOptions& options, const Given& given) { options.card = named_card(given.value).name; }},
    {"--cost", "FILE", "the cost of a pass as ./steps serve-bench --cost fitted it",
     [](ReplayOptions& options, const Given& given) { options.cost = some_text(given); }},
    {"--engines", "N", "engines behind one router, each with its own pool (default: 1)",
     [](ReplayOptions& options, const Given& given) { options.engines = whole_number(given, 1, most_engines); }},
    {"--router", "NAME", "round-robin, least-loaded or longest-prefix (default: least-loaded)",
     [](ReplayOptions& options, const Given& given) {
       options.router = one_of<Router>(given, {{"round-robin", Router::round_robin}, {"least-loaded", Router::least_loaded},
                                               {"longest-prefix", Router::longest_prefix}});
     }},
    {"--sweep", "RANGE", "one replay for each of kv-memory=10GB..320GB or rate=0.5..8, doubling",
     [](ReplayOptions& options, const Given& given) { options.sweep = sweep_of(given); }},
    {"--slo", "TIME", "how many engines give 99% of the requests their first token within TIME, as 5s",
     [](ReplayOptions& options, const Given& given) { options.slo_ms = milliseconds(given); }},
    {"--serial", "", "one request after the other, nothing generated: the plain hit rate",
     [](ReplayOptions& options, const Given&) { options.serial = true; }},
    {"--json", "", "print the report as one JSON object and nothing else",
     [](ReplayOptions& options, const Given&) { options.json = true; }},
    {"--make", "KIND", "write a made-up trace of chat, system or agents on stdout, and replay nothing",
     [](ReplayOptions& options, const Given& given) {
       options.make.kind = one_of<TrafficKind>(given, {{"chat", TrafficKind::chat}, {"system", TrafficKind::system}, {"agents", TrafficKind::agents}});
     }},
    {"--requests", "N", "with --make: how many requests (default: 200)",
     [](ReplayOptions& options, const Given& given) { options.make.requests = whole_number(given, 1, 10'000'000); }},
    {"--longest", "N", "with --make: tokens in and out of the longest request, about (default: 4,200 to 133,500, by kind)",
     [](ReplayOptions& options, const Given& given) { options.make.longest = whole_number(given, 64, 10'000'000); }},
    {"--seed", "N", "with --make: another seed, another trace (default: 0)",
     [](ReplayOptions& options, const Given& given) { options.make.seed = static_cast<std::uint64_t>(whole_number(given, 0, largest_count)); }},
};
// clang-format on

constexpr std::string_view options_of_making[] = {"--make", "--trace-block", "--requests", "--longest",
                                                  "--seed"};

const Spec* find(std::string_view name) {
  const auto* const spec = std::ranges::find(table, name, &Spec::name);
  return spec == std::end(table) ? nullptr : spec;
}

void print_help() {
  fmt::print(
      "Usage: replay TRACE [OPTIONS]\n       replay --make KIND [OPTIONS]\n\n"
      "Serves a trace of requests in virtual time with the schedulers and the managers of steps 2, 3 and 4, "
      "and\n"
      "no model. TRACE has JSON lines: timestamp (ms), input_length, output_length, hash_ids. A server "
      "writes\n"
      "one with --log-trace.\n\nOptions:\n");
  for (const Spec& spec : table)
    fmt::print("  {:28}{}\n", fmt::format("{} {}", spec.name, spec.value), spec.help);
  fmt::print("  {:28}print this help\n", "-h, --help");
}

/// Parses the words of the line into `options`.
/// @return the names of the options
std::vector<std::string_view> read_words(std::span<const char* const> words, ReplayOptions& options) {
  std::vector<std::string_view> seen, known{"--help"};
  for (const Spec& spec : table) known.push_back(spec.name);
  for (std::size_t n = 0; n < words.size(); ++n) {
    const std::string_view word = words[n];
    if (!looks_like_an_option(word)) {
      if (!options.trace.empty())
        throw InputError(fmt::format("unexpected word {}: the trace is {}; give one trace",
                                     word_in_quotes(word), word_in_quotes(options.trace.string())));
      if (word.empty()) throw InputError("the trace's name is empty; give a file");
      options.trace = word;
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const Spec* const spec = find(name);
    if (spec == nullptr) throw unknown_option(name, known, "replay");
    if (std::ranges::count(seen, name) > 0)
      throw InputError(fmt::format("{} is given twice; give it once", name));
    seen.push_back(spec->name);
    Given given{std::string(name), ""};
    if (spec->value.empty()) {
      if (equals != std::string_view::npos) throw takes_no_value(word);
    } else if (equals != std::string_view::npos) {
      given.value = word.substr(equals + 1);
    } else {
      const char* const next = n + 1 < words.size() ? words[++n] : nullptr;
      if (next == nullptr || looks_like_an_option(next)) throw needs_a_value(name, spec->value, next);
      given.value = next;
    }
    spec->store(options, given);
  }
  return seen;
}

void refuse_contradictions(const ReplayOptions& options, std::span<const std::string_view> seen) {
  const auto is_given = [&](std::string_view name) { return std::ranges::count(seen, name) > 0; };
  const auto exclude = [&](std::string_view one, std::string_view other, std::string_view why) {
    if (is_given(one) && is_given(other))
      throw InputError(fmt::format("{} and {} exclude each other: {}; give one of them", one, other, why));
  };
  if (options.makes) {
    if (!options.trace.empty())
      throw InputError(fmt::format("--make writes a trace and reads none; leave out {}",
                                   word_in_quotes(options.trace.string())));
    for (const std::string_view name : seen) {
      if (std::ranges::count(options_of_making, name) == 0)
        throw InputError(fmt::format("--make replays nothing; leave out {}", name));
    }
    return;
  }
  for (const std::string_view name : {"--requests", "--longest", "--seed"}) {
    if (is_given(name)) throw InputError(fmt::format("{} needs --make", name));
  }
  if (options.trace.empty())
    throw InputError(
        "no trace is given; give a file, as in ./steps replay trace.jsonl, or --make chat to write one");
  exclude("--shape", "--model", "both name the model");
  exclude("--kv-memory", "--num-blocks", "both set the size of a pool");
  exclude("--card", "--cost", "both say what a pass costs");
  exclude("--slo", "--engines", "the first looks for the number of engines");
  exclude("--slo", "--sweep", "each makes its own table");
  exclude("--slo", "--serial", "one request after the other is never late");
  exclude("--serial", "--engines", "one request after the other keeps one engine busy");
  if (options.sweep && options.sweep->of == Sweep::Of::kv_memory) {
    exclude("--sweep", "--kv-memory", "both set the size of a pool");
    exclude("--sweep", "--num-blocks", "both set the size of a pool");
  } else if (options.sweep) {
    exclude("--sweep", "--serial", "one request after the other comes at no rate");
  }
  if (options.trace_block % options.block_size != 0)
    throw InputError(fmt::format(
        "--block-size {} does not divide --trace-block {}: a trace says which of its own blocks are "
        "equal; give a divisor of {}",
        options.block_size, options.trace_block, options.trace_block));
  const std::int64_t block_bytes = options.block_size * options.bytes_per_token();
  if (options.num_blocks && *options.num_blocks > std::numeric_limits<std::int64_t>::max() / block_bytes)
    throw InputError(
        fmt::format("--num-blocks {}: so many blocks of {} bytes are more than 2^63 bytes; give fewer",
                    *options.num_blocks, block_bytes));
  const auto hold_a_block = [&](std::string_view option, double kv_memory) {
    if (kv_memory < static_cast<double>(block_bytes))
      throw InputError(
          fmt::format("{}{:.0f}: a block takes {} bytes with --block-size {}; give at least that", option,
                      kv_memory, block_bytes, options.block_size));
  };
  if (options.sweep && options.sweep->of == Sweep::Of::kv_memory) {
    hold_a_block("--sweep kv-memory=", options.sweep->first);
  } else if (!options.num_blocks) {
    hold_a_block("--kv-memory ", static_cast<double>(options.kv_memory));
  }
  if (options.max_batch_tokens < options.max_sequences)
    throw InputError(
        fmt::format("--max-batch-tokens {} is less than --max-sequences {}: each sequence needs a row; raise "
                    "the first or lower the second",
                    options.max_batch_tokens, options.max_sequences));
}

}  // namespace

std::vector<double> Sweep::values() const {
  std::vector<double> values{first};
  while (2 * values.back() <= last) values.push_back(2 * values.back());
  return values;
}

PassCost ReplayOptions::pass_cost() const {
  if (!cost.empty()) {
    PassCost fitted = read_cost(cost);
    if (host_memory > 0 && fitted.swap_ms == 0)
      throw InputError(
          fmt::format("{} has no \"swap_ms\", the milliseconds that a block of --host-memory takes "
                      "to move; add it, or use --card",
                      cost.string()));
    return fitted;
  }
  return roofline(named_card(card), model, size_of(dtype), block_size);
}

std::int64_t ReplayOptions::bytes_per_token() const {
  return model.kv_bytes_per_token(size_of(dtype));
}

std::int64_t ReplayOptions::pool_bytes() const {
  return num_blocks ? *num_blocks * block_size * bytes_per_token() : kv_memory;
}

std::optional<ReplayOptions> parse_replay_options(int argc, const char* const* argv) {
  const std::span<const char* const> words(argv + 1, static_cast<std::size_t>(argc - 1));
  refuse_values(words, {"-h", "--help"});
  for (const std::string_view word : words) {
    if (word != "-h" && word != "--help") continue;
    print_help();
    return std::nullopt;
  }
  ReplayOptions options;
  options.shape = "llama-3.1-8b";
  options.model = named_config(options.shape);
  const std::vector<std::string_view> seen = read_words(words, options);
  options.makes = std::ranges::count(seen, "--make") > 0;
  options.make.block_size = options.trace_block;
  refuse_contradictions(options, seen);
  return options;
}

}  // namespace kvcache
