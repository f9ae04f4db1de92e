/// @file
/// One table holds the options: which steps have them, what their values mean, and their line of --help.
/// CLI11 lays out the help. It does not read the line, because it changes what was written: `--prompt=
/// --json` takes `--json` for the prompt, `010` is eight, `{}` and `[a, b]` are lists. Its messages and exit
/// codes are its own, too. Splitting a line into options and values is a page of code.

#include "common/cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/cli/option_values.h"
#include "common/model/config.h"

namespace kvcache {
namespace {

// ---- values that only a step has ----

/// The name of a shape; for another one the message lists the names.
std::string known_shape(const Given& given) {
  static_cast<void>(named_config(some_text(given)));
  return given.value;
}

std::vector<std::int32_t> token_ids(const Given& given) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin <= given.value.size();) {
    const std::size_t comma = std::min(given.value.find(',', begin), given.value.size());
    const std::string_view item = std::string_view(given.value).substr(begin, comma - begin);
    const std::optional<std::int32_t> id = digits<std::int32_t>(item);
    if (!id) {
      throw InputError(
          fmt::format("{} must be token ids separated by commas, as in 1,2,3, each a whole number from 0"
                      " to {} in plain digits; number {} is {}",
                      given.option, largest_count, ids.size() + 1, word_in_quotes(item)));
    }
    ids.push_back(*id);
    begin = comma + 1;
  }
  return ids;
}

// ---- the table ----

/// The steps that have an option, one bit each.
using Steps = unsigned;
constexpr Steps bit_of(Step step) {
  return 1U << static_cast<unsigned>(step);
}
constexpr Steps step_2 = bit_of(Step::flat_cache);
constexpr Steps step_4 = bit_of(Step::prefix_cache);
constexpr Steps steps_3_4 = bit_of(Step::paged) | step_4;
constexpr Steps steps_2_to_4 = step_2 | steps_3_4;
constexpr Steps every_step = bit_of(Step::no_cache) | steps_2_to_4;

struct OptionSpec {
  std::string_view name;
  std::string_view value;  ///< the value's name in --help; empty: the option is a flag
  std::string_view group;  ///< its heading in --help
  std::string_view help;
  Steps steps;
  void (*store)(Options& options, const Given& given);
  bool repeatable = false;
};

constexpr std::string_view input = "What to generate", sampling = "Sampling", place = "Where and how it runs",
                           cache = "The KV cache", serving = "Serving", output = "Output";

// clang-format off
const OptionSpec option_table[] = {
    {"--model", "DIR", input, "a Hugging Face checkpoint folder (default: the shipped model)", every_step,
     [](Options& options, const Given& given) { options.model = some_text(given); }},
    {"--random-weights", "NAME", input, "random weights, as of qwen3-0.6b; no tokenizer: --ids or 16 made-up ids", every_step,
     [](Options& options, const Given& given) { options.random_weights = known_shape(given); }},
    {"--prompt", "TEXT", input, "a text to continue; repeatable (default: \"Once upon a time\")", every_step,
     [](Options& options, const Given& given) { options.prompts.emplace_back(given.value); }, true},
    {"--prompt-file", "FILE", input, "a text from a file, without its last newline; - is stdin; repeatable", every_step,
     [](Options& options, const Given& given) { options.prompts.emplace_back(PromptFile{some_text(given)}); }, true},
    {"--ids", "1,2,3", input, "token ids to continue; repeatable, and mixes with the two above", every_step,
     [](Options& options, const Given& given) { options.prompts.emplace_back(token_ids(given)); }, true},
    {"--no-special-tokens", "", input, "add no special tokens, as BOS, to a text that has its own", every_step,
     [](Options& options, const Given&) { options.no_special_tokens = true; }},
    {"--tokens", "N", input, "new tokens per sequence; 0 computes only the prompt (default: 64)", every_step,
     [](Options& options, const Given& given) { options.tokens = whole_number(given, 0, largest_count); }},
    {"--ignore-eos", "", input, "do not stop at an end-of-sequence token", every_step,
     [](Options& options, const Given&) { options.ignore_eos = true; }},

    {"--temperature", "T", sampling, "divides the logits; 0 picks the most likely token (default: 0)", every_step,
     [](Options& options, const Given& given) {
       options.sampling.temperature = real_number(given, std::numeric_limits<double>::max(), "a finite number >= 0");
     }},
    {"--top-k", "K", sampling, "pick among the K most likely tokens; 0 is off (default: 0)", every_step,
     [](Options& options, const Given& given) {
       options.sampling.top_k = whole_number(given, 0, largest_count, "; 0 is off");
     }},
    {"--top-p", "P", sampling, "pick among the fewest that reach probability P; 1 is off (default: 1)", every_step,
     [](Options& options, const Given& given) {
       options.sampling.top_p = real_number(given, 1, "a number from 0 to 1; 1 is off");
     }},
    {"--seed", "N", sampling, "for random picks; equal seeds give equal picks (default: 0)", every_step,
     [](Options& options, const Given& given) {
       const std::optional<std::uint64_t> seed = digits<std::uint64_t>(given.value);
       if (!seed) throw given.must_be("a whole number from 0 to 18446744073709551615 in plain digits");
       options.sampling.seed = *seed;
     }},

    {"--device", "cpu|cuda|auto", place, "auto is a GPU if one can be used, else the CPU (default: auto)", every_step,
     [](Options& options, const Given& given) {
       options.device = one_of<DeviceChoice>(given, {{"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}, {"auto", DeviceChoice::automatic}});
     }},
    {"--dtype", "f32|f16|bf16", place, "type of weights and K/V (default: f32 on CPU; bf16, else f16 on CUDA)", every_step,
     [](Options& options, const Given& given) {
       options.dtype = one_of<DType>(given, {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}});
     }},
    {"--threads", "N", place, "CPU threads (default: one for each usable processor)", every_step,
     [](Options& options, const Given& given) { options.threads = static_cast<int>(whole_number(given, 1, 1024)); }},

    {"--max-seq-len", "N", cache, "slots reserved for each sequence (default: the model's limit)", step_2,
     [](Options& options, const Given& given) { options.max_seq_len = whole_number(given, 1, largest_count); }},
    {"--block-size", "N", cache, "tokens per block (default: 16)", steps_3_4,
     [](Options& options, const Given& given) { options.block_size = whole_number(given, 1, largest_count); }},
    {"--num-blocks", "N", cache, "blocks in the pool (default: as many as the sequences need)", steps_3_4,
     [](Options& options, const Given& given) { options.num_blocks = whole_number(given, 1, largest_count); }},
    {"--kv-memory", "SIZE", cache, "size of the pool: 512MiB, 2GB, 1000000; on CUDA also auto", steps_3_4,
     [](Options& options, const Given& given) {
       options.kv_memory_auto = given.value == "auto";
       if (!options.kv_memory_auto) options.kv_memory_bytes = bytes(given, "auto or ");
     }},
    {"--attention", "gather|paged", cache, "gather K/V first, or read it through the block table (default: paged)", steps_3_4,
     [](Options& options, const Given& given) {
       options.attention = one_of<AttentionPath>(given, {{"gather", AttentionPath::gather}, {"paged", AttentionPath::paged}});
     }},
    {"--debug-fill", "nan|huge|none", cache, "fill fresh blocks with this, to find wrong reads (default: none)", steps_3_4,
     [](Options& options, const Given& given) {
       options.debug_fill = one_of<DebugFill>(given, {{"nan", DebugFill::nan}, {"huge", DebugFill::huge}, {"none", DebugFill::none}});
     }},
    {"--debug-preempt", "N", cache, "preempt the youngest sequence every N passes (default: 0, off)", steps_3_4,
     [](Options& options, const Given& given) { options.debug_preempt_every = whole_number(given, 0, largest_count); }},
    {"--prefix-cache", "on|off", cache, "share the blocks of equal prefixes (default: on)", step_4,
     [](Options& options, const Given& given) {
       options.prefix_cache = one_of<bool>(given, {{"on", true}, {"off", false}});
     }},
    {"--salt", "TEXT", cache, "only equal salts share; with --serve the default salt (default: none)", step_4,
     [](Options& options, const Given& given) { options.salt = some_text(given); }},
    {"--system-prompt", "TEXT", cache, "computed once and pinned; prompts that begin with it share it", step_4,
     [](Options& options, const Given& given) { options.system_prompt = some_text(given); }},
    {"--samples", "N", cache, "outputs of each prompt, made by fork (default: 1)", step_4,
     [](Options& options, const Given& given) { options.samples = whole_number(given, 1, 4096); }},
    {"--host-blocks", "N", cache, "blocks of the host tier, in host memory (default: 0)", step_4,
     [](Options& options, const Given& given) { options.host_blocks = whole_number(given, 0, largest_count); }},

    {"--debug-hash-bits", "N", cache, "keep only N bits of each block hash, to make collisions (default: 64)", step_4,
     [](Options& options, const Given& given) { options.debug_hash_bits = static_cast<int>(whole_number(given, 1, 64)); }},

    {"--serve", "", serving, "answer HTTP requests until SIGTERM or SIGINT", steps_2_to_4,
     [](Options& options, const Given&) { options.serve = true; }},
    {"--host", "ADDRESS", serving, "address to listen on; 0.0.0.0 is all (default: 127.0.0.1)", steps_2_to_4,
     [](Options& options, const Given& given) { options.host = some_text(given); }},
    {"--port", "N", serving, "port to listen on; 0 is any free one (default: 5000)", steps_2_to_4,
     [](Options& options, const Given& given) { options.port = static_cast<int>(whole_number(given, 0, 65535)); }},
    {"--max-sequences", "N", serving, "sequences that run at a time; others wait (default: 16)", steps_2_to_4,
     [](Options& options, const Given& given) { options.max_sequences = whole_number(given, 1, 4096); }},
    {"--max-batch-tokens", "N", serving, "rows of a pass at most (default: CPU 64, CUDA 256)", steps_2_to_4,
     [](Options& options, const Given& given) { options.max_batch_tokens = whole_number(given, 1, largest_count); }},
    {"--max-waiting", "N", serving, "requests that wait at most; one more gets 429 (default: 1024)", steps_2_to_4,
     [](Options& options, const Given& given) { options.max_waiting = whole_number(given, 0, 65536); }},
    {"--log-trace", "FILE", serving, "log times, lengths and block hashes of requests; replaces the file", steps_2_to_4,
     [](Options& options, const Given& given) { options.log_trace = some_text(given); }},

    {"--json", "", output, "print the report as one JSON object and nothing else", every_step,
     [](Options& options, const Given&) { options.json = true; }},
    {"--logits", "", output, "with --json: also the logits after each prompt", every_step,
     [](Options& options, const Given&) { options.logits = true; }},
    {"--trace", "FILE", output, "write what the cache did, as JSON lines; replaces the file", steps_2_to_4,
     [](Options& options, const Given& given) { options.trace = some_text(given); }},
    {"--demo", "", output, "draw what the cache does, as in the chapter", every_step,
     [](Options& options, const Given&) { options.demo = true; }},
};
// clang-format on

const OptionSpec* find_option(std::string_view name) {
  const auto* const spec = std::ranges::find(option_table, name, &OptionSpec::name);
  return spec == std::end(option_table) ? nullptr : spec;
}

// ---- unknown names ----

/// Letters to insert, delete, replace or exchange with the next to turn one text into the other (Damerau
/// 1964).
std::size_t edit_distance(std::string_view from, std::string_view to) {
  // distance[i][j]: of the first i letters of `from` to the first j of `to`
  std::vector distance(from.size() + 1, std::vector<std::size_t>(to.size() + 1));
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = distance[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      distance[i][j] = std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance.back().back();
}

/// Settings and reports of one run: with --serve each request brings its settings, and there is no such run.
constexpr std::string_view options_of_one_run[] = {
    "--prompt", "--prompt-file", "--ids",     "--tokens", "--ignore-eos", "--temperature", "--top-k",
    "--top-p",  "--seed",        "--samples", "--json",   "--logits",     "--trace",       "--demo"};
constexpr std::string_view options_of_serving[] = {
    "--host", "--port", "--max-sequences", "--max-batch-tokens", "--max-waiting", "--log-trace"};

/// Hints at no option that --serve refuses. Of two equally near names, one that the line takes comes first.
InputError unknown_option(Step step, std::string_view name, std::string_view program, bool serves) {
  std::vector<std::string_view> known{"--help", "--version"};
  for (const OptionSpec& spec : option_table) {
    const bool refused = serves && std::ranges::count(options_of_one_run, spec.name) > 0;
    if ((spec.steps & bit_of(step)) != 0 && !refused) known.push_back(spec.name);
  }
  std::stable_partition(known.begin(), known.end(), [serves](std::string_view option) {
    return (std::ranges::count(options_of_serving, option) > 0) == serves;
  });
  return kvcache::unknown_option(name, known, program);
}

InputError option_of_another_step(Step step, const OptionSpec& spec) {
  std::vector<std::string> owners;
  for (const Step other : {Step::no_cache, Step::flat_cache, Step::paged, Step::prefix_cache}) {
    if ((spec.steps & bit_of(other)) != 0) owners.push_back(name_of(other));
  }
  return InputError(
      fmt::format("{} belongs to {}, not to {}", spec.name, fmt::join(owners, " and "), name_of(step)));
}

// ---- the line ----

/// The refusal of a word of a run that belongs to no option, with what was probably meant.
/// @param seen          the options before it
/// @param has_a_prompt  whether the line gives one
InputError unexpected_word(std::string_view word, std::span<const std::string_view> seen, bool has_a_prompt) {
  const std::string_view last = seen.empty() ? "" : seen.back();
  std::string why = "no option takes it";
  if (last == "--ids") {
    why = "ids are one value, with commas between them: --ids 1,2,3";
  } else if (!last.empty() && !takes_value(last)) {
    why = fmt::format("{} takes no value", last);
  } else if (last == "--prompt" || !has_a_prompt) {
    why = "a prompt is one value, with quotes around its spaces: --prompt \"...\"";
  }
  return InputError(fmt::format("unexpected word {}: {}", word_in_quotes(word), why));
}

std::string help_of(Step step) {
  CLI::App app("The KV cache, step by step. " + name_of(step) + " generates text from a prompt.",
               name_of(step));
  app.set_help_flag();
  const auto add = [&](const std::string& name, std::string_view value, const std::string& help,
                       std::string_view group) {
    CLI::Option* const option = value.empty() ? app.add_flag(name, help) : app.add_option(name, help);
    option->option_text(std::string(value))->group(std::string(group));
  };
  for (const OptionSpec& spec : option_table) {
    if ((spec.steps & bit_of(step)) != 0)
      add(std::string(spec.name), spec.value, std::string(spec.help), spec.group);
  }
  add("-h,--help", "", "print this help", output);
  add("--version", "", "print the version", output);
  app.footer(
      "Of a model's generation_config.json only eos_token_id counts, not its temperature, top_k or top_p:\n"
      "the default is greedy, so every step gives the same tokens each time.\n"
      "A value that begins with a dash needs an equals sign: --prompt=-x.\n"
      "A terminal shows the texts while they are generated, one after the other.\n"
      "Exit codes: 0 success, 1 a failure while running, 2 a wrong option or input.");
  app.get_formatter()->column_width(28);
  std::string help = app.help();
  for (std::size_t gap; (gap = help.find("\n\n\n")) != std::string::npos;)
    help.erase(gap, 1);  // one empty line is enough
  return help;
}

/// @param given  names of the options on the line
void refuse_mixture_with_serving(const Options& options, std::span<const std::string_view> given) {
  const auto is_given = [&](std::string_view name) { return std::ranges::find(given, name) != given.end(); };
  if (!options.serve) {
    const auto* const found = std::ranges::find_if(options_of_serving, is_given);
    if (found != std::end(options_of_serving)) throw InputError(fmt::format("{} needs --serve", *found));
    return;
  }
  const auto* const found = std::ranges::find_if(options_of_one_run, is_given);
  if (found != std::end(options_of_one_run)) {
    throw InputError(
        fmt::format("{} and --serve exclude each other: a server's requests bring their own settings; leave "
                    "{} out",
                    *found, *found));
  }
  if (options.max_batch_tokens && *options.max_batch_tokens < options.max_sequences) {
    throw InputError(
        fmt::format("--max-batch-tokens {} is less than --max-sequences {}: each sequence needs a row; raise "
                    "the first or lower the second",
                    *options.max_batch_tokens, options.max_sequences));
  }
}

void refuse_contradictions(const Options& options) {
  const bool random = !options.random_weights.empty();
  const auto is_text = [](const Prompt& prompt) { return std::holds_alternative<std::string>(prompt); };
  const auto is_file = [](const Prompt& prompt) { return std::holds_alternative<PromptFile>(prompt); };
  if (std::ranges::count(options.prompts, Prompt(PromptFile{"-"})) > 1)
    throw InputError("--prompt-file - is given twice; stdin can be read only once, so give it once");
  if (random && !options.model.empty()) {
    throw InputError("--model and --random-weights exclude each other; give one of them");
  }
  const bool has_text = std::ranges::any_of(options.prompts, is_text);
  if (random && (has_text || std::ranges::any_of(options.prompts, is_file))) {
    throw InputError(
        fmt::format("{} needs a tokenizer, which --random-weights does not have; give token ids with --ids",
                    has_text ? "--prompt" : "--prompt-file"));
  }
  if (random && !options.system_prompt.empty()) {
    throw InputError("--system-prompt needs a tokenizer, which --random-weights does not have; leave it out");
  }
  if (random && options.no_special_tokens) {
    throw InputError(
        "--no-special-tokens needs a tokenizer, which --random-weights does not have; leave it out");
  }
  if (options.num_blocks && (options.kv_memory_bytes || options.kv_memory_auto)) {
    throw InputError(
        "--num-blocks and --kv-memory exclude each other: both set the size of the pool; give one of them");
  }
  if (options.demo && options.json) {
    throw InputError("--demo and --json exclude each other: both write on stdout; give one of them");
  }
  if (options.logits && !options.json) throw InputError("--logits needs --json");
  if (options.trace == "-")
    throw InputError(
        "--trace - names no file, and stdout is for the report; give a file: --trace trace.jsonl");
  if (options.log_trace == "-")
    throw InputError(
        "--log-trace - names no file, and stdout is for the server's address; give a file: --log-trace "
        "traffic.jsonl");
}

}  // namespace

std::string name_of(Step step) {
  switch (step) {
    case Step::no_cache:
      return "step1_no_cache";
    case Step::flat_cache:
      return "step2_flat_cache";
    case Step::paged:
      return "step3_paged";
    case Step::prefix_cache:
      return "step4_prefix_cache";
  }
  return "";
}

bool is_option(std::string_view name) {
  return find_option(name) != nullptr;
}

bool is_option(Step step, std::string_view name) {
  const OptionSpec* const spec = find_option(name);
  return spec != nullptr && (spec->steps & bit_of(step)) != 0;
}

InputError unknown_option(std::string_view name, std::span<const std::string_view> known,
                          std::string_view program) {
  std::string_view nearest;
  std::size_t smallest = 3;  // up to two typing errors make a hint
  for (const std::string_view option : known) {
    if (name.size() > 2 * option.size()) continue;
    const bool abbreviated = name.size() > 3 && option.starts_with(name);
    const std::size_t distance = abbreviated ? 0 : edit_distance(name, option);
    if (distance < smallest) {
      smallest = distance;
      nearest = option;
    }
  }
  const std::string hint = nearest.empty() ? fmt::format("--help lists the options of {}", program)
                                           : fmt::format("did you mean {}?", nearest);
  return InputError(fmt::format("unknown option {}; {}", word_in_quotes(name), hint));
}

void refuse_values(std::span<const char* const> words, std::initializer_list<std::string_view> flags) {
  for (const std::string_view word : words) {
    const std::size_t equals = word.find('=');
    if (equals != std::string_view::npos && std::ranges::count(flags, word.substr(0, equals)) > 0)
      throw takes_no_value(word);
  }
}

std::string program_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

bool takes_value(std::string_view name) {
  const OptionSpec* const spec = find_option(name);
  return spec != nullptr && !spec->value.empty();
}

std::optional<Options> parse_options(Step step, int argc, const char* const* argv) {
  Options options;
  std::vector<std::string_view> seen;
  const auto is_given = [&](std::string_view name) {
    return std::any_of(argv + 1, argv + argc,
                       [name](std::string_view word) { return word.substr(0, word.find('=')) == name; });
  };
  const bool serves = is_given("--serve");
  for (int word = 1; word < argc; ++word) {
    const std::string_view text = argv[word];
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const bool is_help = name == "-h" || name == "--help", is_version = name == "--version";
    if ((is_help || is_version) && name != text) throw takes_no_value(text);
    if (is_help) {
      std::fputs(help_of(step).c_str(), stdout);
      return std::nullopt;
    }
    if (is_version) {
      std::fputs((name_of(step) + " " PROJECT_VERSION "\n").c_str(), stdout);
      return std::nullopt;
    }
    if (!looks_like_an_option(text)) {
      if (serves) {
        const bool may_be_port = !is_given("--port") && digits<int>(text);
        throw InputError(fmt::format("unexpected word {}: no option takes it{}", word_in_quotes(text),
                                     may_be_port ? "; a port is given as --port N" : ""));
      }
      throw unexpected_word(text, seen,
                            is_given("--prompt") || is_given("--prompt-file") || is_given("--ids"));
    }

    const OptionSpec* const spec = find_option(name);
    if (spec == nullptr) throw unknown_option(step, name, program_name(argv[0]), serves);
    if ((spec->steps & bit_of(step)) == 0) throw option_of_another_step(step, *spec);
    if (!spec->repeatable && std::ranges::find(seen, name) != seen.end()) {
      throw InputError(fmt::format("{} is given twice; give it once", name));
    }
    seen.push_back(name);

    Given given{std::string(name), ""};
    if (equals != std::string_view::npos) {
      given.value = text.substr(equals + 1);
      if (spec->value.empty()) throw takes_no_value(text);
    } else if (!spec->value.empty()) {
      const char* const next = word + 1 < argc ? argv[++word] : nullptr;
      if (next == nullptr || looks_like_an_option(next)) throw needs_a_value(name, spec->value, next);
      given.value = next;
    }
    spec->store(options, given);
  }
  refuse_mixture_with_serving(options, seen);
  refuse_contradictions(options);
  return options;
}

std::filesystem::path first_model_folder(std::span<const std::filesystem::path> places) {
  std::vector<std::string> names;
  for (const std::filesystem::path& place : places) {
    std::error_code error;  // a place that cannot be read is skipped, and the message says why
    const std::filesystem::file_status status = std::filesystem::status(place / "config.json", error);
    if (std::filesystem::exists(status)) return place;
    const bool unknown = status.type() == std::filesystem::file_type::none;
    names.push_back(unknown ? fmt::format("{} ({})", place.string(), error.message()) : place.string());
  }
  throw InputError(fmt::format("the shipped model is not in {}; give a checkpoint folder with --model",
                               fmt::join(names, ", nor in ")));
}

std::filesystem::path shipped_model_folder(const std::filesystem::path& self) {
  std::vector<std::filesystem::path> places = {SHIPPED_MODEL_DIR};  // the source tree
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink(self, error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    places.insert(places.begin(), (folder / "../share/kv_cache_step_by_step/fairytale").lexically_normal());
    // A build folder in a source tree that moved.
    places.push_back((folder / "../../common/fairytale").lexically_normal());
  }
  return first_model_folder(places);
}

}  // namespace kvcache
