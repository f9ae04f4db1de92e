/// @file
/// See experiments.h.
#include "docs/numbers/experiments.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>

#include "common/base/error.h"
#include "docs/numbers/formulas.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 16;

/// Any ids of the vocabulary; two calls have nothing in common but by chance.
std::vector<std::int32_t> made_up_ids(std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < count; ++n) ids.push_back(static_cast<std::int32_t>(random() % 4096));
  return ids;
}

std::vector<std::int32_t> join(std::vector<std::int32_t> head, const std::vector<std::int32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

/// Arrivals within `mean` units of time, if they come one per unit on average. The standard library's own
/// distribution differs between libraries.
std::int64_t poisson(double mean, std::mt19937_64& random) {
  std::int64_t arrivals = 0;
  for (double time = 0;; ++arrivals) {
    time -= std::log((static_cast<double>(random() >> 11) + 0.5) * 0x1p-53);
    if (time > mean) return arrivals;
  }
}

/// Everything that can be read from `descriptor`.
std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 65536> part;
  for (ssize_t count = 0; (count = read(descriptor, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(count));
  return text;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// What `program` prints on stdout. @throws RunError with what it says on stderr unless it exits with 0.
std::string output_of(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int pipe_ends[2];
  const std::unique_ptr<std::FILE, CloseFile> errors(std::tmpfile());
  if (!errors || pipe(pipe_ends) != 0) throw RunError("no pipe or file to read a program's output from");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(errors.get()), STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
  pid_t child = 0;
  const int failure = posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::string text = failure == 0 ? read_all(pipe_ends[0]) : "";
  close(pipe_ends[0]);
  int status = 0;
  if (failure != 0 || waitpid(child, &status, 0) != child)
    throw RunError(fmt::format("{} cannot be run; build it, then try again", program.string()));
  if (status != 0) {
    lseek(fileno(errors.get()), 0, SEEK_SET);
    const std::string said = read_all(fileno(errors.get()));
    throw RunError(fmt::format("{}: {}", program.filename().string(), said.substr(0, said.find('\n'))));
  }
  return text;
}

StepFigures figures(const nlohmann::json& report) {
  const nlohmann::json& memory = report.at("kv_memory");
  return {memory.at("bytes_per_token"), memory.at("reserved_bytes"), memory.at("used_bytes"),
          report.at("kv_rows").at("computed"), report.at("counters").at("prefix_hits")};
}

/// The options that all steps get.
std::vector<std::string> requests_of(const Experiment& experiment) {
  std::vector<std::string> arguments = {"--device", "cpu", "--random-weights", "tiny", "--tokens", "2"};
  for (const std::vector<std::int32_t>& ids : experiment.sequences) {
    arguments.emplace_back("--ids");
    arguments.push_back(fmt::format("{}", fmt::join(ids.begin(), ids.end() - 1, ",")));
  }
  return arguments;
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::string& option,
                              std::int64_t value) {
  arguments.insert(arguments.end(), {option, std::to_string(value)});
  return arguments;
}

}  // namespace

std::filesystem::path folder_of_programs() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

nlohmann::json report_of_step(const std::string& step, std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  return nlohmann::json::parse(output_of(folder_of_programs() / step, arguments));
}

Experiment four_sequences() {
  std::mt19937_64 random(1);
  Experiment experiment{"4 sequences of 1,024, 512, 200 and 512 tokens", 1024, {}};
  for (const std::int64_t tokens : {1024, 512, 200, 512})
    experiment.sequences.push_back(made_up_ids(tokens, random));
  return experiment;
}

Experiment poisson_lengths() {
  std::mt19937_64 random(2);
  Experiment experiment{"32 sequences, lengths Poisson(2,000)", 32768, {}};
  for (int n = 0; n < 32; ++n) experiment.sequences.push_back(made_up_ids(poisson(2000, random), random));
  return experiment;
}

Experiment common_system_prompt() {
  std::mt19937_64 random(3);
  Experiment experiment{"100 requests behind one system prompt of 500 tokens", 1024, {}};
  const std::vector<std::int32_t> prompt = made_up_ids(500, random);
  for (int n = 0; n < 100; ++n) {
    const auto own = 20 + static_cast<std::int64_t>(random() % 64);
    experiment.sequences.push_back(join(prompt, made_up_ids(own, random)));
  }
  return experiment;
}

Experiment mixed_requests() {
  std::mt19937_64 random(4);
  Experiment experiment{"160 mixed requests", 8192, {}};
  const std::vector<std::int32_t> prompts[] = {{}, made_up_ids(120, random), made_up_ids(300, random)};
  for (int n = 0; n < 160; ++n) {
    const std::vector<std::int32_t>& prompt = prompts[random() % 3];
    const std::uint64_t own = random() % 4 == 0 ? 512 + random() % 2048 : 16 + random() % 256;
    experiment.sequences.push_back(join(prompt, made_up_ids(static_cast<std::int64_t>(own), random)));
  }
  return experiment;
}

double StepFigures::waste() const {
  return wasted_share(reserved_bytes, used_bytes);
}

ExperimentResult run_experiment(Experiment experiment) {
  const std::vector<std::string> requests = requests_of(experiment);
  const std::vector<std::string> flat = with(requests, "--max-seq-len", experiment.max_seq_len);
  const std::vector<std::string> paged = with(requests, "--block-size", kBlockSize);
  return {std::move(experiment), figures(report_of_step("step2_flat_cache", flat)),
          figures(report_of_step("step3_paged", paged)),
          figures(report_of_step("step4_prefix_cache", paged))};
}

std::int64_t rows_of_a_decode_pass(const std::string& step, std::int64_t context) {
  // The prompt's own pass projects context - 1 rows, in every step.
  std::mt19937_64 random(5);
  const Experiment one{"", 0, {made_up_ids(context, random)}};
  return figures(report_of_step(step, requests_of(one))).rows_computed - (context - 1);
}

std::int64_t bytes_gathered(const std::string& attention, std::int64_t context) {
  std::mt19937_64 random(5);
  std::vector<std::string> arguments = requests_of({"", 0, {made_up_ids(context, random)}});
  arguments.insert(arguments.end(), {"--attention", attention});
  return report_of_step("step3_paged", std::move(arguments))["counters"]["gathered_bytes"];
}

}  // namespace kvcache
