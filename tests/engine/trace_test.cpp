// --trace: a reader of the lines knows all that the cache held, at every moment. The trace changes no result.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <utility>

#include "common/engine/tracing_manager.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/support/report_of.h"
#include "tests/support/trace_replay.h"

namespace kvcache {
namespace {

using Tokens = std::vector<std::int32_t>;
using Arguments = std::vector<std::string>;

// ---- the manager's lines ----

void expect_same(const CacheState& ours, const CacheState& theirs) {
  EXPECT_EQ(ours.block_size, theirs.block_size);
  EXPECT_EQ(ours.sequences, theirs.sequences);
  EXPECT_EQ(ours.references, theirs.references);
  EXPECT_EQ(ours.free, theirs.free);
  EXPECT_EQ(ours.contents, theirs.contents);
  EXPECT_EQ(ours.host, theirs.host);
}

/// A traced manager, and a reader of the trace that must know as much as the manager after every call.
class TracedManager {
 public:
  TracedManager(std::unique_ptr<KvManager> manager, const std::string& step)
      : manager_(std::move(manager)), tracing_(*manager_, lines_, step, "none", {}) {
    read();
  }

  /// Plans the sequences up to their lengths, then commits or aborts the plan.
  bool pass(const std::map<std::int32_t, Tokens>& wanted, bool commits) {
    std::vector<Work> work;
    for (const auto& [id, ids] : wanted) work.push_back({id, ids});
    const std::optional<PassPlan> plan = tracing_.plan(work);
    read();
    if (!plan) return false;
    commits ? tracing_.commit(*plan) : tracing_.abort(*plan);
    read();
    if (!commits) return true;
    for (const auto& [id, ids] : wanted) stored_[id] = ids;
    check_contents();
    return true;
  }
  void free(std::int32_t sequence) {
    tracing_.free(sequence);
    stored_.erase(sequence);
    read();
  }
  void discard(std::int32_t sequence) {
    tracing_.discard({sequence, stored_.at(sequence)}, 0);
    stored_.erase(sequence);
    read();
  }
  void fork(std::int32_t parent, std::int32_t child) {
    tracing_.fork(parent, child);
    stored_[child] = stored_.at(parent);
    read();
    check_contents();
  }
  void pin(std::int32_t sequence) {
    tracing_.pin(sequence);
    if (pinned_ && *pinned_ != sequence) stored_.erase(*pinned_);
    pinned_ = sequence;
    read();
  }

  const std::map<std::int32_t, Tokens>& stored() const { return stored_; }
  std::optional<std::int32_t> pinned() const { return pinned_; }
  const TraceReplay& replay() const { return replay_; }
  const KvManager& manager() const { return *manager_; }

 private:
  void read() {
    for (std::string line; std::getline(lines_, line);) replay_.apply(line);
    lines_.clear();  // its end was reached; more will come
    expect_same(replay_.state, manager_->state());
  }
  void check_contents() const {
    for (const auto& [id, ids] : stored_) EXPECT_EQ(replay_.read(id), ids) << "sequence " << id;
  }

  std::unique_ptr<KvManager> manager_;
  std::stringstream lines_;
  TracingManager tracing_;
  TraceReplay replay_;
  std::map<std::int32_t, Tokens> stored_;
  std::optional<std::int32_t> pinned_;
};

/// Random calls, with few different ids, so that sequences begin alike.
class RandomCalls {
 public:
  RandomCalls(TracedManager& traced, bool shares, std::uint32_t seed)
      : traced_(traced), shares_(shares), random_(seed) {}

  void run(int calls) {
    for (int call = 0; call < calls && !testing::Test::HasFailure(); ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      const int kind = below(10);
      if (kind == 0 && shares_ && !traced_.stored().empty()) {
        traced_.fork(any(), next_id_++);
      } else if (kind == 1 && shares_ && below(4) == 0 && !traced_.stored().empty()) {
        traced_.pin(any());
      } else if (kind <= 3 && !traced_.stored().empty()) {
        below(4) == 0 ? traced_.discard(any()) : traced_.free(any());
      } else {
        pass();
      }
    }
  }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  std::int32_t any() {
    return std::next(traced_.stored().begin(), below(static_cast<int>(traced_.stored().size())))->first;
  }
  void pass() {
    std::map<std::int32_t, Tokens> wanted;
    for (const auto& [id, ids] : traced_.stored()) {
      if (id != traced_.pinned() && below(2) == 0) wanted[id] = longer(ids, 1 + below(3));
    }
    if (wanted.empty() || below(3) == 0) wanted[next_id_++] = longer({}, 1 + below(12));
    traced_.pass(wanted, below(4) > 0);
  }
  Tokens longer(Tokens ids, int more) {
    while (more-- > 0) ids.push_back(below(4) == 0 ? 7 : static_cast<std::int32_t>(ids.size()));
    return ids;
  }

  TracedManager& traced_;
  bool shares_;
  std::mt19937 random_;
  std::int32_t next_id_ = 0;
};

TEST(Trace, RebuildsAFlatCacheAfterEveryCall) {
  TracedManager traced(std::make_unique<FlatCacheManager>(FlatCacheShape{4, 20, 1}), "step2_flat_cache");
  RandomCalls(traced, false, 1).run(2000);
  const TraceReplay& replay = traced.replay();
  for (const char* event : {"plan", "commit", "abort", "free", "refuse"})
    EXPECT_GT(replay.events.at(event), 50) << event;
}

TEST(Trace, RebuildsAPagedCacheAfterEveryCall) {
  TracedManager traced(std::make_unique<PagedManager>(PagedShape{12, 3, 1}), "step3_paged");
  RandomCalls(traced, false, 2).run(2000);
  const TraceReplay& replay = traced.replay();
  for (const char* event : {"plan", "commit", "abort", "free", "refuse"})
    EXPECT_GT(replay.events.at(event), 50) << event;
}

TEST(Trace, RebuildsASharedCacheAfterEveryCall) {
  TracedManager traced(
      std::make_unique<PrefixCachingManager>(PagedShape{14, 3, 1}, SharingSettings{.host_blocks = 5}),
      "step4_prefix_cache");
  RandomCalls(traced, true, 3).run(5000);
  const TraceReplay& replay = traced.replay();
  for (const char* event : {"plan", "commit", "abort", "free", "refuse", "fork"})
    EXPECT_GT(replay.events.at(event), 50) << event;
  EXPECT_GT(replay.events.at("pin"), 10);
  const CountersReport counters = traced.manager().counters();
  EXPECT_EQ(replay.hits, counters.prefix_hits);
  EXPECT_EQ(replay.evicted, counters.evictions);
  EXPECT_EQ(replay.copies, counters.copies);
  EXPECT_EQ(replay.swaps_out, counters.swaps_out);
  EXPECT_EQ(replay.swaps_in, counters.swaps_in);
  for (const std::int64_t count :
       {replay.hits, replay.evicted, replay.copies, replay.swaps_out, replay.swaps_in})
    EXPECT_GT(count, 50);
}

TEST(Trace, ARefusalIsToldOnceUntilTheSequenceFits) {
  PagedManager manager(PagedShape{2, 2, 1});
  std::stringstream lines;
  TracingManager tracing(manager, lines, "step3_paged", "none", {});
  const Tokens ids{1, 2, 3, 4};
  const auto plan = [&](std::int32_t id, std::size_t length) {
    const Work work{id, std::span(ids).first(length)};
    const std::optional<PassPlan> plan = tracing.plan({&work, 1});
    if (plan) tracing.commit(*plan);
  };
  plan(0, 1);
  plan(1, 4);
  plan(0, 2);  // another sequence goes on
  plan(1, 4);
  tracing.free(0);
  plan(1, 4);
  plan(2, 1);
  const std::string text = lines.str();
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count(R"({"event":"refuse","sequences":[1]})"), 1) << text;
  EXPECT_EQ(count(R"({"event":"refuse","sequences":[2]})"), 1) << text;
}

// A traced manager answers every question like an untraced one. The interface has default answers; a
// decorator that forgets a function silently gives these.
TEST(Trace, ForwardsEveryCallOfTheInterface) {
  const std::string tracing = read_file(SOURCE_DIR "/common/engine/tracing_manager.h");
  const std::string interface = read_file(SOURCE_DIR "/common/kv/kv_manager.h");
  const std::regex declaration(R"(virtual [^~;{]*?(\w+)\([^;{]*\)[^;{]*[;{])");
  int calls = 0;
  for (std::sregex_iterator call(interface.begin(), interface.end(), declaration), end; call != end; ++call) {
    const std::string name = (*call)[1];
    EXPECT_TRUE(std::regex_search(tracing, std::regex("\\b" + name + R"(\([^;{]*\)[^;{]* override)")))
        << name;
    ++calls;
  }
  EXPECT_GE(calls, 14) << "the interface was not understood";
}

TEST(Trace, AnswersAsTheManagerThatIsTraced) {
  PrefixCachingManager manager(PagedShape{6, 2, 8}, SharingSettings{});
  std::stringstream lines;
  TracingManager tracing(manager, lines, "step4_prefix_cache", "none", {});
  const Tokens ids{1, 2, 3, 4, 5};
  for (const std::int32_t id : {0, 1}) {
    const Work work{id, ids};
    tracing.commit(*tracing.plan({&work, 1}));
  }
  EXPECT_TRUE(tracing.can_fork());
  EXPECT_EQ(tracing.capacity(), 12);
  EXPECT_EQ(tracing.cached_tokens(1), 4);
  EXPECT_EQ(tracing.block_table(1), manager.block_table(1));
  EXPECT_EQ(tracing.block_table(1).size(), 3U);
  EXPECT_EQ(tracing.memory().used_bytes, (4 + 1 + 1) * 8);
  EXPECT_EQ(tracing.blocks().in_use, 4);
  EXPECT_EQ(tracing.counters().prefix_hits, 2);
  expect_same(tracing.state(), manager.state());
}

// ---- the programs ----

/// The report without its times: equal in every run.
nlohmann::json without_times(nlohmann::json report) {
  report.erase("timing");
  for (nlohmann::json& sequence : report["sequences"]) sequence.erase("ttft_ms");
  return report;
}

struct TracedRun {
  nlohmann::json report;
  std::string trace;
  TraceReplay replay;
};

TracedRun traced_run(const std::string& step, Arguments arguments) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace.jsonl";
  arguments.insert(arguments.end(), {"--trace", file});
  TracedRun run{report_of(step, arguments), read_file(file), {}};
  std::istringstream lines(run.trace);
  for (std::string line; std::getline(lines, line);) run.replay.apply(line);
  return run;
}

/// Runs `step` and compares its trace with its report.
TracedRun checked_run(const std::string& step, const Arguments& arguments) {
  TracedRun run = traced_run(step, arguments);
  const TraceReplay& replay = run.replay;
  EXPECT_EQ(without_times(run.report), without_times(report_of(step, arguments)))
      << "tracing changes the run";
  EXPECT_EQ(run.trace, traced_run(step, arguments).trace) << "two runs have two traces";
  EXPECT_EQ(replay.header.at("step"), step);
  EXPECT_EQ(replay.header.at("model"), run.report["model"]);
  EXPECT_EQ(replay.computed, run.report["kv_rows"]["computed"]);
  const nlohmann::json &blocks = run.report["blocks"], &counters = run.report["counters"];
  for (const char* name : {"free", "cached", "in_use"})
    EXPECT_EQ(replay.end.at("blocks").at(name), blocks[name]);
  for (const auto& [name, count] : replay.end.at("counters").items())
    EXPECT_EQ(count, counters[name]) << name;
  EXPECT_EQ(replay.hits, counters["prefix_hits"]);
  EXPECT_EQ(replay.evicted, counters["evictions"]);
  EXPECT_EQ(replay.copies, counters["copies"]);
  EXPECT_EQ(replay.swaps_out, counters["swaps_out"]);
  EXPECT_EQ(replay.swaps_in, counters["swaps_in"]);
  EXPECT_EQ(replay.preempted, counters["preemptions"]);
  if (step != "step2_flat_cache") {
    EXPECT_EQ(std::ssize(replay.state.references), blocks["total"]);
    EXPECT_EQ(replay.cached(), blocks["cached"]);
    EXPECT_EQ(std::ssize(replay.state.free) - replay.cached(), blocks["free"]);
  }
  return run;
}

const Arguments kWolves{"--prompt", "The wolf said to",
                        "--prompt", "The wolf said to the lamb",
                        "--prompt", "The wolf said to the goat and her kids",
                        "--tokens", "9"};

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Trace, TellsWhatTheFlatCacheDid) {
  const TracedRun run = checked_run("step2_flat_cache", with(kWolves, {"--max-seq-len", "20"}));
  EXPECT_EQ(run.replay.header.at("block_size"), 20);
  EXPECT_EQ(run.replay.header.at("blocks"), 3);
  EXPECT_EQ(run.replay.events.at("free"), 3);
}

TEST(Trace, TellsOfPreemptionInThePagedCache) {
  const TracedRun run = checked_run("step3_paged", with(kWolves, {"--block-size", "4", "--num-blocks", "6"}));
  EXPECT_GT(run.replay.preempted, 0);
  EXPECT_GT(run.replay.events.at("refuse"), 0);
}

TEST(Trace, TellsOfHitsEvictionsAndSwapsInTheSharedCache) {
  const TracedRun run = checked_run("step4_prefix_cache",
                                    with(kWolves, {"--prompt", "The king had a daughter, and she", "--prompt",
                                                   "The wolf said to the lamb and", "--block-size", "2",
                                                   "--num-blocks", "10", "--host-blocks", "4"}));
  EXPECT_GT(run.replay.hits, 0);
  EXPECT_GT(run.replay.evicted, 0);
  EXPECT_GT(run.replay.swaps_out, 0);
  EXPECT_GT(run.replay.swaps_in, 0);
}

TEST(Trace, TellsOfForksAndCopiesAndAPinnedPrefix) {
  const TracedRun run = checked_run(
      "step4_prefix_cache", {"--system-prompt", "The wolf said", "--prompt", "The wolf said to the lamb",
                             "--samples", "3", "--temperature", "0.8", "--tokens", "5", "--block-size", "2"});
  EXPECT_EQ(run.replay.events.at("fork"), 2);
  EXPECT_EQ(run.replay.events.at("pin"), 1);
  EXPECT_GT(run.replay.copies, 0);
}

TEST(Trace, HasTheTextOfEveryToken) {
  const TracedRun run = traced_run("step3_paged", {"--prompt", "The wolf", "--tokens", "1"});
  EXPECT_NE(run.trace.find(R"("texts":["The"," wolf"])"), std::string::npos) << run.trace;
}

TEST(Trace, HasIdsAloneWithoutATokenizer) {
  const TracedRun run =
      traced_run("step3_paged", {"--random-weights", "fairytale", "--tokens", "1", "--ids", "5,6"});
  EXPECT_EQ(run.trace.find("texts"), std::string::npos) << run.trace;
  EXPECT_NE(run.trace.find(R"("token_ids":[5,6])"), std::string::npos) << run.trace;
}

TEST(Trace, ReplacesTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace.jsonl";
  write_file(file, std::string(100000, 'x') + "\n");
  report_of("step3_paged", {"--tokens", "1", "--trace", file});
  EXPECT_EQ(read_file(file).find(std::string(100, 'x')), std::string::npos) << "of the old file";
  EXPECT_EQ(read_file(file).substr(0, 12), R"({"schema":1,)");
}

TEST(Trace, AFileThatCannotBeWrittenIsRefusedBeforeAnythingRuns) {
  for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    expect_refusal(step, {"--trace", "/no/such/folder/trace"}, 2,
                   {"--trace", "/no/such/folder/trace", "No such file"});
    expect_refusal(step, {"--json", "--trace", "/"}, 2, {"--trace", "\"/\"", "Is a directory"});
  }
}

TEST(Trace, ReplacesNoFileThatTheRunReads) {
  const TemporaryFolder folder;
  const CheckpointCopy model;
  const std::filesystem::path text = folder / "text", weights = folder / "weights";
  std::filesystem::create_hard_link(model / "model.safetensors", weights);
  std::filesystem::create_symlink(text, folder / "link");
  write_file(text, "The wolf");
  const auto expect_kept = [&](const std::filesystem::path& trace, const std::string& prompt_file,
                               const std::string& place) {
    const std::string before = read_file(trace);
    for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"})
      expect_refusal(
          step, {"--model", model.path(), "--tokens", "1", "--prompt-file", prompt_file, "--trace", trace}, 2,
          {"--trace", "\"" + trace.string() + "\"", place, "give another file"});
    EXPECT_TRUE(read_file(trace) == before) << trace;
  };
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"})
    expect_kept(model / name, text, "the model in " + model.path().string());
  expect_kept(weights, text, "the model in ");
  expect_kept(text, text, "--prompt-file " + text.string());
  expect_kept(folder / "link", text, "--prompt-file ");
  expect_kept(text, folder / "link", "--prompt-file ");
  // A trace may stand beside the model, and replace one there.
  for (int run = 0; run < 2; ++run) {
    report_of("step3_paged", {"--model", model.path(), "--tokens", "1", "--prompt-file", text, "--trace",
                              model / "trace.jsonl"});
  }
}

/// A trace of such a name would be read by all later runs.
TEST(Trace, GetsNoNameUnderWhichRunsReadTheModel) {
  const CheckpointCopy model;
  for (const char* name : {"generation_config.json", "tokenizer.json", "model.safetensors.index.json"}) {
    const std::filesystem::path trace = model / name;
    std::filesystem::remove(trace);
    expect_refusal("step3_paged",
                   {"--model", model.path(), "--tokens", "1", "--ids", "1,2", "--trace", trace}, 2,
                   {"--trace", "\"" + trace.string() + "\"", "a file of the model", "give another file"});
    EXPECT_FALSE(std::filesystem::exists(trace));
  }
  const TemporaryFolder folder;
  std::filesystem::create_symlink(model / "tokenizer.json", folder / "link");
  expect_refusal("step3_paged",
                 {"--model", model.path(), "--tokens", "1", "--ids", "1,2", "--trace", folder / "link"}, 2,
                 {"--trace", "a file of the model", "give another file"});
  EXPECT_FALSE(std::filesystem::exists(model / "tokenizer.json"));
  // Elsewhere the name is free.
  report_of("step3_paged",
            {"--model", model.path(), "--tokens", "1", "--ids", "1,2", "--trace", folder / "tokenizer.json"});
}

TEST(Trace, CannotBeWrittenInAFolderThatIsGone) {
  const TemporaryFolder folder;
  const std::string step = std::filesystem::path(BINARY_DIR) / "step3_paged";
  const std::string gone = folder / "gone", model = checkpoint_folder("llama-gqa");
  const ProgramResult result =
      run_program("/bin/sh", {"-c", "mkdir '" + gone + "' && cd '" + gone + "' && rmdir '" + gone + "' && '" +
                                        step + "' --model '" + model + "' --ids 1,2 --tokens 1 --trace x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(
      result.err,
      "error: --trace cannot write \"x\": No such file or directory; give a file that can be written\n");
}

TEST(Trace, IsNotForStdout) {
  expect_refusal("step3_paged", {"--trace", "-"}, 2, {"--trace -", "stdout", "give a file"});
}

TEST(Trace, DoesNotReplaceTheFileThatGetsStdout) {
  const TemporaryFolder folder;
  const std::string file = folder / "both", step = std::filesystem::path(BINARY_DIR) / "step3_paged";
  const std::string traced = "'" + step + "' --tokens 2 --trace '" + file + "' ", to_file = "'" + file + "'";
  for (const char* mode : {">", ">>"}) {
    write_file(file, "old\n");
    std::string command = traced;
    command.append(mode).append(to_file);
    const ProgramResult result = run_program("/bin/sh", {"-c", command});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("which is stdout; give another file\n"), std::string::npos) << result.err;
    EXPECT_EQ(read_file(file), std::string(mode) == ">" ? "" : "old\n");
  }
}

/// Where a standard stream is closed, the next file to be opened could stand in its place.
TEST(Trace, GetsNothingThatIsPrintedToAClosedStream) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace", step = std::filesystem::path(BINARY_DIR) / "step3_paged";
  const std::string model = checkpoint_folder("llama-gqa");
  const std::string command =
      "'" + step + "' --model '" + model + "' --prompt '<s>Once' --tokens 2 --trace '" + file + "' ";
  for (const auto& [closed, code] :
       {std::pair("2>&-", 0), std::pair(">&-", 1), std::pair("<&- 2>&-", 0), std::pair("2>/dev/full", 0)}) {
    const ProgramResult result = run_program("/bin/sh", {"-c", command + closed});
    EXPECT_EQ(result.exit_code, code) << closed;
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(line.starts_with("{")) << closed << ": " << line;
  }
}

TEST(Trace, AFullDiskFailsTheRunAndPrintsNoReport) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  expect_refusal("step3_paged", {"--tokens", "2", "--json", "--trace", "/dev/full"}, 1,
                 {"trace", "/dev/full"});
}

TEST(Trace, Step1HasNone) {
  expect_refusal(
      "step1_no_cache", {"--trace", "x"}, 2,
      {"--trace belongs to step2_flat_cache and step3_paged and step4_prefix_cache, not to step1_no_cache"});
}

}  // namespace
}  // namespace kvcache
