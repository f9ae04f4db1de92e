/// @file
/// See program.h.
#include "common/cli/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/cli/device.h"
#include "common/cli/live_text.h"
#include "common/cli/machine.h"
#include "common/cli/print.h"
#include "common/cli/progress.h"
#include "common/cli/prompt_file.h"
#include "common/engine/tracing_manager.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// The default of --max-batch-tokens. On the CPU, more rows make the decoding sequences wait longer for
/// others' prompts, and no prompt gets ready much sooner. On a GPU, a pass of few rows leaves the GPU idle.
constexpr std::int64_t kRowsOnCpu = 64, kRowsOnCuda = 256;

constexpr const char* kDefaultPrompt = "Once upon a time";

/// Ids for a model without a tokenizer, spread over the vocabulary.
std::vector<std::int32_t> made_up_ids(std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < 16; ++n) ids.push_back(static_cast<std::int32_t>((n * 7919 + 1) % vocab_size));
  return ids;
}

/// Notes what the writer of a text may not expect: bytes without a token, a doubled special token.
void add_notes(Program& program, const Encoding& encoding, const std::string& name) {
  if (encoding.bytes_left_out > 0)
    program.notes.push_back(fmt::format("{}: bytes left out, for which the vocabulary has no token: {}", name,
                                        encoding.bytes_left_out));
  if (encoding.doubled)
    program.notes.push_back(
        fmt::format("{} begins with {} and the tokenizer adds another one; --no-special-tokens adds none",
                    name, text_of_token(*program.tokenizer, *encoding.doubled)));
}

/// Refuses a text that no encoding makes short enough, before the encoding, which takes long.
void check_text_length(const Program& program, const std::string& text, const std::string& name) {
  const ModelConfig& config = program.model->config();
  const std::int64_t tokens = config.max_position_embeddings - 1;
  const std::optional<std::int64_t> bytes_of_a_token = program.tokenizer->most_bytes_of_a_token();
  if (!bytes_of_a_token || std::ssize(text) <= tokens * *bytes_of_a_token) return;
  throw InputError(fmt::format(
      "{} has {} bytes and {}; more than {} bytes are always more than {} tokens; give a shorter text", name,
      text.size(), config.context_sentence(), tokens * *bytes_of_a_token, tokens));
}

/// @throws InputError that begins with `name`, for a text that cannot be encoded or is too long.
std::vector<std::int32_t> encode(Program& program, const std::string& text, const std::string& name) {
  check_text_length(program, text, name);
  Encoding encoding;
  try {
    encoding = program.tokenizer->encode_text(text, !program.options.no_special_tokens);
    refuse_lost_text(encoding);
  } catch (const InputError& error) {
    throw InputError(name + ": " + error.what());
  }
  add_notes(program, encoding, name);
  return encoding.ids;
}

std::vector<std::int32_t> prompt_ids(const Prompt& prompt, Program& program, const std::string& name) {
  if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&prompt)) return *ids;
  return encode(program, std::get<std::string>(prompt), name);
}

/// The folder of the checkpoint that is read.
std::filesystem::path model_folder(const Options& options) {
  return options.model.empty() ? shipped_model_folder() : options.model;
}

/// Whether a run reads the file of this name in the model's folder.
bool is_of_the_model(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" || name == "tokenizer.json" ||
         name == "model.safetensors.index.json" || name.ends_with(".safetensors");
}

/// A file that a run writes, and the option that names it.
struct TraceFile {
  std::string_view option;
  const std::string& name;
};

/// A new trace must not get the name of a file of the model: later runs would read it. A link counts as what
/// it leads to.
void refuse_name_of_the_model(const TraceFile& trace, const Options& options) {
  constexpr int most_links = 40;  // as the system follows them
  std::filesystem::path file = trace.name;
  std::error_code error;
  for (int links = 0; links < most_links && std::filesystem::is_symlink(file, error); ++links)
    file = file.parent_path() / std::filesystem::read_symlink(file, error);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!options.random_weights.empty() || !is_of_the_model(file.filename()) ||
      !std::filesystem::equivalent(folder, model_folder(options), error))
    return;
  throw InputError(
      fmt::format("{} would write \"{}\", which runs read as a file of the model; give another file",
                  trace.option, trace.name));
}

/// Weights are mapped, and cutting off a mapped file ends the run with a signal.
void check_trace_replaces_nothing(const TraceFile& trace, const Options& options) {
  std::error_code error;
  if (trace.name.empty()) return;
  if (!std::filesystem::exists(trace.name, error)) return refuse_name_of_the_model(trace, options);
  // A pipe or a device is not replaced.
  if (!std::filesystem::is_regular_file(trace.name, error)) return;
  const auto refuse_if_same = [&](const std::filesystem::path& input, const std::string& place) {
    std::error_code differs;  // a file that cannot be looked at is another one: the trace could be
    if (std::filesystem::equivalent(trace.name, input, differs))
      throw InputError(fmt::format("{} would replace \"{}\", which is {}; give another file", trace.option,
                                   trace.name, place));
  };
  refuse_if_same("/dev/stdout", "stdout");
  for (const Prompt& prompt : options.prompts) {
    if (const auto* file = std::get_if<PromptFile>(&prompt))
      refuse_if_same(file->name == "-" ? "/dev/stdin" : file->name,
                     "the text of --prompt-file " + file->name);
  }
  if (!options.random_weights.empty()) return;
  const std::filesystem::path folder = model_folder(options);
  std::filesystem::directory_iterator files(folder, error);  // empty where there is no such folder
  for (const std::filesystem::directory_entry& entry : files) {
    if (is_of_the_model(entry.path().filename()))
      refuse_if_same(entry.path(), fmt::format("a file of the model in {}", folder.string()));
  }
}

/// A pipe gives its text once. Read again, under another name, it would be empty.
/// @throws InputError that names a pipe given twice.
void refuse_a_pipe_given_twice(const std::vector<Prompt>& prompts) {
  std::map<std::pair<dev_t, ino_t>, std::string> pipes;
  for (const Prompt& prompt : prompts) {
    const auto* file = std::get_if<PromptFile>(&prompt);
    struct stat found {};
    if (file == nullptr || stat(file->name == "-" ? "/dev/stdin" : file->name.c_str(), &found) != 0 ||
        !S_ISFIFO(found.st_mode))
      continue;
    const auto [first, is_new] = pipes.try_emplace({found.st_dev, found.st_ino}, file->name);
    if (!is_new)
      throw InputError(
          fmt::format("--prompt-file {} and --prompt-file {} are one pipe, which can be read only once; give "
                      "it once",
                      first->second, file->name));
  }
}

/// Replaces each prompt file by its text.
void read_prompt_files(std::vector<Prompt>& prompts) {
  for (Prompt& prompt : prompts) {
    if (const auto* file = std::get_if<PromptFile>(&prompt)) prompt = read_prompt_file(file->name);
  }
}

/// Whether there is a text to encode: a prompt, the default prompt or a system prompt.
bool needs_tokenizer(const Options& options) {
  return (options.prompts.empty() && !options.serve) || !options.system_prompt.empty() ||
         std::ranges::any_of(options.prompts, [](const Prompt& prompt) {
           return std::holds_alternative<std::string>(prompt);
         });
}

void add_requests(Program& program) {
  const Options& options = program.options;
  const ModelConfig& config = program.model->config();
  if (options.serve) {
    Request whole_context;
    whole_context.prompt_ids = {0};
    whole_context.max_tokens = config.max_position_embeddings;
    program.requests.assign(static_cast<std::size_t>(options.max_sequences), whole_context);
    return;
  }
  std::vector<Prompt> prompts = options.prompts;
  if (prompts.empty() && program.tokenizer) prompts.emplace_back(kDefaultPrompt);
  if (prompts.empty()) prompts.emplace_back(made_up_ids(config.vocab_size));
  for (const Prompt& prompt : prompts) {
    const std::string name = fmt::format("prompt {}", &prompt - prompts.data() + 1);
    Request request{.prompt_ids = prompt_ids(prompt, program, name),
                    .max_tokens = options.tokens,
                    .ignore_eos = options.ignore_eos,
                    .sampling = options.sampling,
                    .forks = options.samples - 1};
    check_prompt(name, request.prompt_ids, config);
    for (std::int64_t sample = 0; sample < options.samples; ++sample) {
      program.requests.push_back(request);
      request.forks = 0;
      ++request.sampling.seed;  // each sample of a prompt has its own
    }
  }
}

/// The most tokens that a request can come to.
std::int64_t length_of(const Request& request, const Program& program) {
  return std::min(std::ssize(request.prompt_ids) + request.max_tokens,
                  program.model->config().max_position_embeddings);
}

/// Bytes that K and V can take. On a GPU they share the memory with the activations of a pass. A trial pass
/// shows how much these need, where the cache takes all the rest or a server's passes are not known yet.
std::int64_t memory_for_kv(const Program& program) {
  if (!program.gpu) return machine_memory().total;
  const Options& options = program.options;
  const bool is_sized = options.max_seq_len || options.num_blocks || options.kv_memory_bytes;
  const bool takes_the_rest =
      options.kv_memory_auto || options.serve || (!is_sized && program.step == Step::flat_cache);
  if (!takes_the_rest) return free_memory(*program.gpu);
  // A server's pass has a bound, except the one that computes the pinned prefix.
  const std::int64_t rows = options.serve ? rows_of_a_pass(program) : longest_request(program);
  return memory_left_by_a_pass(*program.model, *program.gpu,
                               std::max(rows, std::ssize(program.pinned_prefix)),
                               std::ssize(program.requests));
}

/// Whether progress is drawn: on a terminal, unless a program reads the JSON report.
bool shows_progress(const Options& options) {
  return stderr_is_terminal() && (!options.json || isatty(STDOUT_FILENO) == 1);
}

/// The file that --trace names; not open if there is none.
/// @throws InputError if it cannot be opened.
std::ofstream open_trace(const std::string& name) {
  std::ofstream file;
  if (name.empty()) return file;
  file.open(name, std::ios::binary);
  if (!file)
    throw InputError(fmt::format("--trace cannot write \"{}\": {}; give a file that can be written", name,
                                 std::strerror(errno)));
  return file;
}

/// Runs the program's requests, and writes what the cache does to `file` if it is open.
/// @throws RunError if it cannot be written.
Report run_with_trace(Program& program, KvManager& traced, KvStore& store, std::ofstream& file,
                      RunSettings settings) {
  if (!file.is_open()) return run(*program.model, traced, store, program.requests, settings);
  TracingManager::TextOfToken text;
  if (program.tokenizer) text = [&](std::int32_t id) { return text_of_token(*program.tokenizer, id); };
  TracingManager manager(traced, file, name_of(program.step), program.model_name, text);
  settings.on_end = [&, on_end = std::move(settings.on_end)](std::size_t request, const std::string& reason) {
    manager.finishing(static_cast<std::int32_t>(request), reason);
    if (on_end) on_end(request, reason);
  };
  Report report = run(*program.model, manager, store, program.requests, settings);
  manager.end(report.blocks, report.counters);
  file.close();
  if (!file)
    throw RunError(fmt::format("the trace could not be written to {}; check that the disk has room",
                               program.options.trace));
  return report;
}

/// Runs the program's requests. A terminal shows a progress line meanwhile and, if the run `is_live`, the
/// texts while they are generated.
Report run_on_terminal(Program& program, const Cache& cache, bool is_live) {
  const Options& options = program.options;
  const ModelConfig& config = program.model->config();
  std::ofstream trace = open_trace(options.trace);
  print_notes(program, cache);
  RunSettings settings{.keep_logits = options.logits,
                       .preempt_every = options.debug_preempt_every,
                       .pinned_prefix = program.pinned_prefix};
  PassProgress progress(*cache.store, config.layers, shows_progress(options));
  std::optional<LiveText> live;
  if (is_live) {
    live.emplace(*program.tokenizer, program.requests.size(),
                 options.ignore_eos ? std::vector<std::int32_t>{} : config.eos_ids,
                 [&](std::string_view text) {
                   if (text.empty()) return;
                   progress.text_begins();
                   fmt::print("{}", text);
                   std::fflush(stdout);
                 });
    settings.on_token = [&](std::size_t sequence, std::int32_t id) { live->push(sequence, id); };
    settings.on_end = [&](std::size_t sequence, const std::string& reason) {
      live->end(sequence, reason == "error");
    };
  }
  KvStore& store = program.gpu ? *cache.store : progress;
  return run_with_trace(program, *cache.manager, store, trace, settings);
}

/// Sets the text of the output. Where tokenizer.json's decoder fails, the text ends there, and the sequence
/// has ended with an error.
void add_text(SequenceReport& sequence, const Tokenizer& tokenizer) {
  std::span<const std::int32_t> ids = sequence.output_ids;
  if (sequence.finish_reason == "stop") ids = ids.first(ids.size() - 1);
  StreamDecoder decoder(tokenizer);
  try {
    for (const std::int32_t id : ids) sequence.text += decoder.push(id);
    sequence.text += decoder.finish();
  } catch (const RunError& error) {
    sequence.finish_reason = "error";
    if (sequence.error.empty()) sequence.error = error.what();
  }
}

/// Adds what a run does not know: the model, the device and the texts.
void complete(Report& report, const Program& program) {
  report.step = name_of(program.step);
  report.model = program.model_name;
  report.device = program.gpu ? "cuda" : "cpu";
  report.dtype = name_of(program.dtype);
  report.threads = program.threads->threads();
  if (!program.tokenizer) return;
  for (SequenceReport& sequence : report.sequences) add_text(sequence, *program.tokenizer);
}

/// "prompt 2", or "prompt 2, sample 1" where a prompt has several samples.
std::string name_of_sequence(std::size_t index, std::int64_t samples) {
  const auto number = static_cast<std::int64_t>(index);
  const std::string prompt = fmt::format("prompt {}", number / samples + 1);
  return samples == 1 ? prompt : fmt::format("{}, sample {}", prompt, number % samples + 1);
}

/// The sequences that ended with an error, and why the first of them did; empty: none.
std::string failure_of(const Report& report, std::int64_t samples) {
  std::string failure, others;
  for (std::size_t index = 0; index < report.sequences.size(); ++index) {
    const std::string& error = report.sequences[index].error;
    if (error.empty()) continue;
    const std::string name = name_of_sequence(index, samples);
    if (failure.empty()) {
      failure = report.sequences.size() == 1 ? error : fmt::format("{}: {}", name, error);
    } else {
      others += (others.empty() ? "; failed too: " : "; ") + name;
    }
  }
  return failure + others;
}

}  // namespace

std::string text_of_token(const Tokenizer& tokenizer, std::int32_t id) {
  try {
    return tokenizer.decode({&id, 1}, /*skip_special=*/false);
  } catch (const RunError&) {
    return fmt::format("token {}", id);
  }
}

void check_traces_replace_nothing(const Options& options) {
  check_trace_replaces_nothing({"--trace", options.trace}, options);
  check_trace_replaces_nothing({"--log-trace", options.log_trace}, options);
}

Program load_program(Step step, Options options) {
  Program program{.step = step,
                  .options = std::move(options),
                  .model_name = {},
                  .dtype = DType::f32,
                  .threads = {},
                  .gpu = {},
                  .memory = 0,
                  .memory_to_serve = 0,
                  .tokenizer = {},
                  .model = {},
                  .requests = {},
                  .pinned_prefix = {}};
  const Options& given = program.options;
  check_traces_replace_nothing(given);
  refuse_a_pipe_given_twice(given.prompts);
  read_prompt_files(program.options.prompts);
  program.gpu = choose_gpu(given.device);
  program.dtype = choose_dtype(given.dtype, program.gpu.get());
  program.threads =
      std::make_unique<ThreadPool>(given.threads > 0 ? given.threads : ThreadPool::all_threads());
  if (!given.random_weights.empty()) {
    program.model_name = "random:" + given.random_weights;
    const ModelConfig config = named_config(given.random_weights);
    ProgressLine progress("Making random weights", shows_progress(given));
    Weights weights = random_weights(config, program.dtype, 0, std::ref(progress), program.threads.get());
    program.model = make_model(config, std::move(weights), program.dtype, *program.threads, program.gpu);
  } else {
    const std::filesystem::path folder = model_folder(given);
    program.model_name = folder.string();
    const ModelConfig config = read_config(folder);
    if (needs_tokenizer(given) || has_entry(folder / "tokenizer.json")) program.tokenizer.emplace(folder);
    ProgressLine progress("Loading weights", shows_progress(given));
    Weights weights = load_weights(folder, config, program.dtype, std::ref(progress), program.threads.get());
    program.model = make_model(config, std::move(weights), program.dtype, *program.threads, program.gpu);
  }
  add_requests(program);
  if (!given.system_prompt.empty()) {
    program.pinned_prefix = encode(program, given.system_prompt, "the system prompt");
    check_prompt("the system prompt", program.pinned_prefix, program.model->config());
  }
  program.memory = memory_for_kv(program);
  program.memory_to_serve = program.gpu ? program.memory : machine_memory().available / 2;
  return program;
}

void add_demo_prompts(Options& options) {
  if (!options.prompts.empty() || !options.random_weights.empty()) return;
  const std::string beginning =
      "Once upon a time there was a poor fisherman who lived with his wife in a little hut close by the sea.";
  for (const std::string& prompt : {beginning + " One day", beginning + " One morning he went",
                                    std::string("The wolf"), beginning + " At last"}) {
    options.prompts.emplace_back(prompt);
  }
}

std::int64_t rows_of_a_pass(const Program& program) {
  const Options& options = program.options;
  const std::int64_t fitting = program.gpu ? kRowsOnCuda : kRowsOnCpu;
  return options.max_batch_tokens.value_or(std::max(fitting, options.max_sequences));
}

std::int64_t longest_request(const Program& program) {
  std::int64_t longest = 0;
  for (const Request& request : program.requests) longest = std::max(longest, length_of(request, program));
  return longest;
}

std::int64_t tokens_of_all_requests(const Program& program) {
  std::int64_t tokens = 0;
  for (const Request& request : program.requests) tokens += length_of(request, program);
  return tokens;
}

std::string name_of_request(const Program& program, std::size_t index) {
  if (program.options.serve) return "a request";
  return fmt::format("prompt {}", static_cast<std::int64_t>(index) / program.options.samples + 1);
}

void check_capacity(const Program& program, const KvManager& manager, const std::string& remedy) {
  const auto check = [&](const std::string& name, const std::vector<std::int32_t>& ids) {
    if (static_cast<std::int64_t>(ids.size()) <= manager.capacity()) return;
    throw InputError(fmt::format("{} has {} tokens and the cache holds at most {} of one sequence; {}", name,
                                 ids.size(), manager.capacity(), remedy));
  };
  check("the system prompt", program.pinned_prefix);
  for (std::size_t n = 0; n < program.requests.size(); ++n)
    check(name_of_request(program, n), program.requests[n].prompt_ids);
}

void print_notes(const Program& program, const Cache& cache) {
  for (const auto* notes : {&program.notes, &cache.notes}) {
    for (const std::string& note : *notes) std::fputs(("note: " + note + "\n").c_str(), stderr);
  }
}

Report run_and_print(Program& program, const Cache& cache) {
  const Options& options = program.options;
  const bool is_live = !options.json && program.tokenizer && isatty(STDOUT_FILENO) == 1;
  Report report = run_on_terminal(program, cache, is_live);
  complete(report, program);
  const std::string failure = failure_of(report, options.samples);
  const bool all_failed = std::ranges::all_of(
      report.sequences, [](const SequenceReport& sequence) { return !sequence.error.empty(); });
  if (all_failed) throw RunError(failure);
  fmt::print("{}", options.json ? to_json(report) : to_text(report, is_live));
  if (!failure.empty()) throw RunError(failure);
  return report;
}

}  // namespace kvcache
