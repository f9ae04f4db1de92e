// The replay's engine beside the serving engine with a model: equal requests, arriving before equal passes,
// give equal passes. Compared are the whole plans (sequences, rows, slots, block tables, swaps), the counters
// and the requests' ends, in steps 2, 3 and 4, with pools that are small enough for preemptions and
// evictions.
#include "common/replay/virtual_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "common/base/error.h"
#include "common/replay/replay.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

/// One pass as a manager and a scheduler saw it.
struct SeenPass {
  PassPlan plan;
  CountersReport counters;  // of the manager
  std::int64_t waiting = 0, preemptions = 0;
  double begin_ms = 0;
};

/// Keeps each plan that is committed.
class SeenPasses final : public KvManager {
 public:
  explicit SeenPasses(KvManager& manager) : manager_(manager) {}

  std::optional<PassPlan> plan(std::span<const Work> work) override { return manager_.plan(work); }
  void commit(const PassPlan& plan) override {
    manager_.commit(plan);
    passes.push_back({.plan = plan, .counters = manager_.counters()});
  }
  void abort(const PassPlan& plan) override { manager_.abort(plan); }
  void free(std::int32_t sequence) override { manager_.free(sequence); }
  void discard(const Work& work, std::int64_t cached_tokens) override {
    manager_.discard(work, cached_tokens);
  }
  bool can_fork() const override { return manager_.can_fork(); }
  std::int64_t capacity() const override { return manager_.capacity(); }
  KvMemoryReport memory() const override { return manager_.memory(); }
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return manager_.block_table(sequence);
  }
  std::int64_t cached_tokens(std::int32_t sequence) const override {
    return manager_.cached_tokens(sequence);
  }
  BlocksReport blocks() const override { return manager_.blocks(); }
  CountersReport counters() const override { return manager_.counters(); }
  CacheState state() const override { return manager_.state(); }

  std::vector<SeenPass> passes;

 private:
  KvManager& manager_;
};

/// Requests, and the cache and the settings with which they are served.
struct Case {
  Kind kind = Kind::paged;
  Traffic traffic;
  SchedulerSettings scheduler;
  PagedShape paged;     // of steps 3 and 4
  FlatCacheShape flat;  // of step 2
  std::int64_t host_blocks = 0;
};

constexpr std::int64_t kBytesPerToken = 64;  // one layer, one head of 8 numbers in 4 bytes

/// A manager whose promises are checked after every call.
std::unique_ptr<KvManager> manager_of(const Case& the_case) {
  if (the_case.kind == Kind::flat)
    return std::make_unique<CheckedManager<FlatCacheManager>>(
        std::make_unique<FlatCacheManager>(the_case.flat));
  if (the_case.kind == Kind::paged)
    return std::make_unique<CheckedManager<PagedManager>>(std::make_unique<PagedManager>(the_case.paged));
  return std::make_unique<CheckedManager<PrefixCachingManager>>(std::make_unique<PrefixCachingManager>(
      the_case.paged, SharingSettings{.host_blocks = the_case.host_blocks}));
}

std::unique_ptr<KvStore> store_of(const Case& the_case, const ModelConfig& config, ThreadPool& threads) {
  const PagedKvStore::Settings settings{AttentionPath::paged, DebugFill::nan};
  if (the_case.kind == Kind::flat)
    return std::make_unique<FlatCacheStore>(config, the_case.flat, DType::f32, threads);
  if (the_case.kind == Kind::paged)
    return std::make_unique<PagedKvStore>(config, the_case.paged, DType::f32, settings, threads);
  return std::make_unique<TieredKvStore>(config, the_case.paged, the_case.host_blocks, DType::f32, settings,
                                         threads);
}

/// Small random cases. Some prompts begin as another does, some are another's whole prompt.
class Cases {
 public:
  explicit Cases(std::uint64_t seed) : random_(seed) {}

  Case next(Kind kind) {
    Case the_case;
    the_case.kind = kind;
    Traffic& traffic = the_case.traffic;
    const std::int64_t block_sizes[] = {2, 4, 8};
    const std::int64_t block_size = block_sizes[below(3)];
    traffic.block_size = block_size << below(3);
    std::int64_t now = 0, longest = 1;
    const std::int64_t requests = 5 + below(12);
    for (std::int64_t n = 0; n < requests; ++n) {
      now += below(6) == 0 ? 30 + below(40) : below(5);
      add_request(traffic, now);
      longest = std::max(longest, traffic.requests.back().tokens_to_store());
    }
    the_case.scheduler.max_sequences = 1 + below(6);
    the_case.scheduler.max_batch_tokens = the_case.scheduler.max_sequences + below(40);
    the_case.flat = {1 + below(4), longest + below(5), kBytesPerToken};
    // The longest fits alone, and a few blocks more.
    the_case.paged = {(longest + block_size - 1) / block_size + below(12), block_size, kBytesPerToken};
    the_case.host_blocks = kind == Kind::tiered ? 1 + below(12) : 0;
    return the_case;
  }

 private:
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }

  void add_request(Traffic& traffic, std::int64_t now) {
    TrafficRequest request{.timestamp_ms = now, .output_length = below(4) == 0 ? below(3) : below(24)};
    const bool follows = !traffic.requests.empty() && below(3) > 0;
    const TrafficRequest other =
        follows ? traffic.requests[static_cast<std::size_t>(below(std::ssize(traffic.requests)))]
                : TrafficRequest{};
    if (follows && below(5) == 0) {  // the whole prompt once more
      request.blocks = other.blocks;
      request.input_length = other.input_length;
    } else {
      if (follows) {
        const std::int64_t shared = below(other.input_length / traffic.block_size + 1);  // full blocks
        request.blocks.assign(other.blocks.begin(), other.blocks.begin() + shared);
      }
      const std::int64_t more = 1 + below(40);
      request.input_length = std::ssize(request.blocks) * traffic.block_size + more;
      for (std::int64_t left = more; left > 0; left -= traffic.block_size)
        request.blocks.push_back(next_block_++);
    }
    traffic.requests.push_back(request);
  }

  std::mt19937_64 random_;
  std::int32_t next_block_ = 0;
};

/// What came of a case.
struct Played {
  std::vector<SeenPass> passes;
  std::vector<RequestOutcome> outcomes;
  std::int64_t generated_tokens = 0, computed_tokens = 0;
  std::vector<std::vector<std::int32_t>> outputs;  // with a model: the ids
};

/// Adds requests by their timestamps: n is before the pass with the number n. A pass takes a millisecond.
/// @param add       adds a request
/// @param run_pass  runs one at this time; false: there is no work
template <typename Add, typename RunPass>
void play(const Traffic& traffic, const Add& add, const RunPass& run_pass) {
  std::size_t next = 0;
  double now = 0;
  for (int tries = 0; tries < 100'000; ++tries) {
    for (; next < traffic.requests.size() && static_cast<double>(traffic.requests[next].timestamp_ms) <= now;
         ++next)
      add(next, static_cast<double>(traffic.requests[next].timestamp_ms));
    if (run_pass(now)) {
      now += 1;
    } else if (next < traffic.requests.size()) {
      now = static_cast<double>(traffic.requests[next].timestamp_ms);
    } else {
      return;
    }
  }
  FAIL() << "the requests do not end";
}

class VirtualEngineBesideTheEngine : public testing::TestWithParam<Kind> {
 protected:
  // A vocabulary in which outputs, as good as random, are seldom equal. The logits do not matter.
  VirtualEngineBesideTheEngine() {
    test::TestCheckpoint("LlamaForCausalLM", {{"vocab_size", 16384},
                                              {"hidden_size", 8},
                                              {"intermediate_size", 8},
                                              {"num_hidden_layers", 1},
                                              {"num_attention_heads", 1},
                                              {"num_key_value_heads", 1},
                                              {"max_position_embeddings", 512}})
        .save(folder_.path());
    model_ = loaded_model(folder_.path(), threads_, DType::f32, std::vector<std::int32_t>{});
  }

  Played with_a_model(const Case& the_case) {
    const std::unique_ptr<KvManager> manager = manager_of(the_case);
    const std::unique_ptr<KvStore> store = store_of(the_case, model_->config(), threads_);
    SeenPasses seen(*manager);
    Engine engine(*model_, seen, *store, nullptr, the_case.scheduler);
    Played played;
    played.outcomes.resize(the_case.traffic.requests.size());
    played.outputs.resize(the_case.traffic.requests.size());
    double end_of_pass = 0;
    const auto add = [&](std::size_t index, double now) {
      const TokenIds ids = the_case.traffic.prompt_ids(index);
      GenerationRequest request;
      request.prompt_ids.assign(ids.begin(), ids.end());
      request.max_tokens = the_case.traffic.requests[index].output_length;
      request.ignore_eos = true;
      request.sampling = {.temperature = 100, .seed = 1000 * index + 1};
      engine.check(request);
      RequestOutcome& outcome = played.outcomes[index];
      outcome.arrival_ms = now;
      engine.add(index, request, [&, index](const GenerationEvent& event) {
        std::vector<std::int32_t>& ids_so_far = played.outputs[index];
        if (event.id) ids_so_far.push_back(*event.id);
        if (outcome.first_token_ms == 0) outcome.first_token_ms = end_of_pass;
        if (!event.summary) return;
        EXPECT_EQ(event.finish_reason, "length");
        outcome.state = RequestOutcome::State::done;
        outcome.end_ms = end_of_pass;
        outcome.cached_tokens = event.summary->cached_tokens;
      });
    };
    play(the_case.traffic, add, [&](double now) {
      end_of_pass = now + 1;
      std::int64_t waiting = 0, preemptions = 0;
      const bool worked = engine.run_pass([&] {
        waiting = std::ssize(engine.scheduler().waiting());
        preemptions = engine.scheduler().preemptions();
      });
      if (!worked) return false;
      engine.scheduler().check_invariants();
      SeenPass& pass = seen.passes.back();
      pass.waiting = waiting;
      pass.preemptions = preemptions;
      pass.begin_ms = now;
      return true;
    });
    played.passes = seen.passes;
    played.generated_tokens = engine.totals().generated_tokens;
    played.computed_tokens = engine.totals().computed_tokens;
    EXPECT_EQ(engine.totals().passes, std::ssize(played.passes));
    return played;
  }

  static Played without_a_model(const Case& the_case) {
    const std::unique_ptr<KvManager> manager = manager_of(the_case);
    SeenPasses seen(*manager);
    Played played;
    played.outcomes.resize(the_case.traffic.requests.size());
    VirtualEngine engine(the_case.traffic, seen, the_case.scheduler, PassCost{.constant_ms = 1},
                         played.outcomes);
    std::int64_t most_sequences = 0;
    play(
        the_case.traffic, [&](std::size_t index, double now) { engine.add(index, now); },
        [&](double now) {
          if (!engine.has_work()) return false;
          EXPECT_EQ(engine.ready_ms(), now);
          if (!engine.run_pass()) return false;
          EXPECT_EQ(engine.ready_ms(), now + 1);
          engine.scheduler().check_invariants();
          SeenPass& pass = seen.passes.back();
          pass.waiting = engine.waiting();
          pass.preemptions = engine.scheduler().preemptions();
          pass.begin_ms = now;
          most_sequences = std::max(most_sequences, std::ssize(pass.plan.sequences));
          return true;
        });
    EXPECT_EQ(engine.tokens_in_hand(), 0);
    EXPECT_EQ(manager->memory().used_bytes, 0);
    EXPECT_EQ(engine.totals().most_sequences, most_sequences);
    EXPECT_EQ(engine.totals().passes, std::ssize(seen.passes));
    played.passes = seen.passes;
    played.generated_tokens = engine.totals().generated_tokens;
    played.computed_tokens = engine.totals().computed_tokens;
    return played;
  }

  /// Whether an output of the model is, by chance, what another request has at its place behind equal tokens.
  /// Then blocks of outputs can be shared, which a replay does not know.
  static bool outputs_are_shared(const Traffic& traffic,
                                 const std::vector<std::vector<std::int32_t>>& outputs) {
    for (std::size_t one = 0; one < traffic.requests.size(); ++one) {
      if (outputs[one].empty()) continue;
      const TokenIds mine = traffic.prompt_ids(one);
      for (std::size_t other = 0; other < traffic.requests.size(); ++other) {
        const TokenIds theirs = traffic.prompt_ids(other);
        if (one == other || theirs.size() < mine.size() ||
            !std::equal(mine.begin(), mine.end(), theirs.begin()))
          continue;
        if (theirs.size() > mine.size() && theirs[mine.size()] == outputs[one][0]) return true;
        if (theirs.size() == mine.size() && !outputs[other].empty() && outputs[other][0] == outputs[one][0])
          return true;
      }
    }
    return false;
  }

  TemporaryFolder folder_;
  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_;
};

std::vector<std::vector<std::int32_t>> pairs(const std::vector<BlockCopy>& copies) {
  std::vector<std::vector<std::int32_t>> result;
  for (const BlockCopy& copy : copies) result.push_back({copy.from, copy.to});
  return result;
}

/// All of a plan but the ids of outputs.
void expect_equal(const PassPlan& real, const PassPlan& replayed) {
  ASSERT_EQ(real.sequences, replayed.sequences);
  ASSERT_EQ(real.row_begin, replayed.row_begin);
  ASSERT_EQ(real.positions, replayed.positions);
  ASSERT_EQ(real.context_len, replayed.context_len);
  ASSERT_EQ(real.slots, replayed.slots);
  ASSERT_EQ(real.block_table, replayed.block_table);
  ASSERT_EQ(real.fresh_blocks, replayed.fresh_blocks);
  ASSERT_EQ(pairs(real.swaps_out), pairs(replayed.swaps_out));
  ASSERT_EQ(pairs(real.swaps_in), pairs(replayed.swaps_in));
  ASSERT_EQ(pairs(real.copies), pairs(replayed.copies));
}

void expect_equal(const CountersReport& real, const CountersReport& replayed) {
  ASSERT_EQ(real.prefix_hits, replayed.prefix_hits);
  ASSERT_EQ(real.evictions, replayed.evictions);
  ASSERT_EQ(real.swaps_out, replayed.swaps_out);
  ASSERT_EQ(real.swaps_in, replayed.swaps_in);
  ASSERT_EQ(real.copies, replayed.copies);
}

void expect_equal(const Played& real, const Played& replayed) {
  for (std::size_t n = 0; n < std::min(real.passes.size(), replayed.passes.size()); ++n) {
    SCOPED_TRACE("pass " + std::to_string(n));
    ASSERT_NO_FATAL_FAILURE(expect_equal(real.passes[n].plan, replayed.passes[n].plan));
    ASSERT_NO_FATAL_FAILURE(expect_equal(real.passes[n].counters, replayed.passes[n].counters));
    ASSERT_EQ(real.passes[n].begin_ms, replayed.passes[n].begin_ms);
    ASSERT_EQ(real.passes[n].preemptions, replayed.passes[n].preemptions);
    ASSERT_EQ(real.passes[n].waiting, replayed.passes[n].waiting);
  }
  ASSERT_EQ(real.passes.size(), replayed.passes.size());
  ASSERT_EQ(real.generated_tokens, replayed.generated_tokens);
  ASSERT_EQ(real.computed_tokens, replayed.computed_tokens);
  for (std::size_t n = 0; n < real.outcomes.size(); ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    ASSERT_EQ(real.outcomes[n].state, replayed.outcomes[n].state);
    ASSERT_EQ(real.outcomes[n].arrival_ms, replayed.outcomes[n].arrival_ms);
    ASSERT_EQ(real.outcomes[n].first_token_ms, replayed.outcomes[n].first_token_ms);
    ASSERT_EQ(real.outcomes[n].end_ms, replayed.outcomes[n].end_ms);
    ASSERT_EQ(real.outcomes[n].cached_tokens, replayed.outcomes[n].cached_tokens);
  }
}

/// Rows of positions that were computed in a pass before.
std::int64_t recomputed(const std::vector<SeenPass>& passes) {
  std::set<std::pair<std::int32_t, std::int32_t>> seen;  // sequence, position
  std::int64_t again = 0;
  for (const SeenPass& pass : passes) {
    for (std::size_t s = 0; s < pass.plan.sequences.size(); ++s) {
      for (auto row = pass.plan.row_begin[s]; row < pass.plan.row_begin[s + 1]; ++row)
        again +=
            seen.insert({pass.plan.sequences[s], pass.plan.positions[static_cast<std::size_t>(row)]}).second
                ? 0
                : 1;
    }
  }
  return again;
}

/// The report of a replay has the sums of the passes.
void expect_sums(const Case& the_case, const Played& real) {
  EngineParts parts{.manager = manager_of(the_case)};
  std::int64_t passes = 0;
  const ReplayReport report =
      replay(the_case.traffic, {&parts, 1}, {.scheduler = the_case.scheduler, .cost = {.constant_ms = 1}},
             [&](std::int64_t so_far) { passes = so_far; });
  const ReplayFigures& drained = report.drained;
  ASSERT_NO_FATAL_FAILURE(expect_equal(real.passes.back().counters, drained.counters));
  ASSERT_EQ(drained.counters.preemptions, real.passes.back().preemptions);
  ASSERT_EQ(drained.passes, std::ssize(real.passes));
  ASSERT_EQ(passes, std::ssize(real.passes));
  ASSERT_EQ(drained.at_ms, real.passes.back().begin_ms + 1);
  ASSERT_EQ(drained.done, std::ssize(the_case.traffic.requests));
  ASSERT_EQ(drained.refused + drained.waiting + drained.running, 0);
  ASSERT_EQ(drained.generated_tokens, real.generated_tokens);
  ASSERT_EQ(drained.computed_tokens, real.computed_tokens);
  ASSERT_EQ(drained.recomputed_tokens, recomputed(real.passes));
  std::int64_t found = 0, most = 0, sequences = 0;
  for (const RequestOutcome& outcome : real.outcomes) found += outcome.cached_tokens;
  for (const SeenPass& pass : real.passes) {
    sequences += std::ssize(pass.plan.sequences);
    most = std::max(most, std::ssize(pass.plan.sequences));
  }
  ASSERT_EQ(drained.found_tokens, found);
  ASSERT_EQ(drained.most_sequences, most);
  ASSERT_DOUBLE_EQ(drained.mean_sequences, static_cast<double>(sequences) / drained.at_ms);
  ASSERT_DOUBLE_EQ(drained.busy_share, static_cast<double>(real.passes.size()) / drained.at_ms);
}

TEST_P(VirtualEngineBesideTheEngine, PlansTheSamePasses) {
  constexpr int kCases = 60;
  int compared = 0, chunks = 0;
  CountersReport sum;
  Cases cases(static_cast<std::uint64_t>(GetParam()) + 1);
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    const Case the_case = cases.next(GetParam());
    const Played real = with_a_model(the_case);
    if (outputs_are_shared(the_case.traffic, real.outputs)) continue;
    ++compared;
    ASSERT_NO_FATAL_FAILURE(expect_equal(real, without_a_model(the_case)));
    ASSERT_NO_FATAL_FAILURE(expect_sums(the_case, real));
    const SeenPass& last = real.passes.back();
    sum.prefix_hits += last.counters.prefix_hits;
    sum.evictions += last.counters.evictions;
    sum.swaps_out += last.counters.swaps_out;
    sum.swaps_in += last.counters.swaps_in;
    sum.preemptions += last.preemptions;
    for (const SeenPass& pass : real.passes)
      chunks +=
          pass.plan.context_len.back() <
          the_case.traffic.requests[static_cast<std::size_t>(pass.plan.sequences.back() - 1)].input_length;
  }
  // The cases are worth comparing.
  EXPECT_GT(compared, kCases * 9 / 10);
  EXPECT_GT(chunks, 100);
  if (GetParam() != Kind::flat) {
    EXPECT_GT(sum.preemptions, 30);
  }
  if (GetParam() == Kind::sharing || GetParam() == Kind::tiered) {
    EXPECT_GT(sum.prefix_hits, 500);
    EXPECT_GT(sum.evictions, 200);
  }
  if (GetParam() == Kind::tiered) {
    EXPECT_GT(sum.swaps_out, 100);
    EXPECT_GT(sum.swaps_in, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(, VirtualEngineBesideTheEngine, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return name_of(info.param); });

// Alone, with what follows from the rules by hand

/// Requests without shared blocks, each in blocks of 4.
Traffic traffic_of(const std::vector<TrafficRequest>& requests) {
  Traffic traffic{.block_size = 4, .requests = requests};
  std::int32_t block = 0;
  for (TrafficRequest& request : traffic.requests) {
    for (std::int64_t left = request.input_length; left > 0; left -= 4) request.blocks.push_back(block++);
  }
  return traffic;
}

TEST(VirtualEngine, RefusesAtOnceWhatTheMemoryCannotHold) {
  const Traffic traffic = traffic_of({{.input_length = 8, .output_length = 2},    // stores 9
                                      {.input_length = 8, .output_length = 1},    // stores 8
                                      {.input_length = 8, .output_length = 0},    // stores 8
                                      {.input_length = 9, .output_length = 0}});  // stores 9
  PagedManager manager({2, 4, kBytesPerToken});
  std::vector<RequestOutcome> outcomes(4);
  VirtualEngine engine(traffic, manager, {.max_batch_tokens = 16, .max_sequences = 2}, {.constant_ms = 1},
                       outcomes);
  for (std::size_t n = 0; n < 4; ++n) engine.add(n, 3);
  using State = RequestOutcome::State;
  EXPECT_EQ(outcomes[0].state, State::refused);
  EXPECT_EQ(outcomes[0].end_ms, 3);
  EXPECT_EQ(outcomes[1].state, State::waiting);
  EXPECT_EQ(outcomes[2].state, State::waiting);
  EXPECT_EQ(outcomes[3].state, State::refused);
  EXPECT_EQ(engine.tokens_in_hand(), 9 + 8);
  while (engine.has_work()) engine.run_pass();
  EXPECT_EQ(outcomes[1].state, State::done);
  EXPECT_EQ(outcomes[1].end_ms, 4);
  EXPECT_EQ(outcomes[2].state, State::done);
  EXPECT_EQ(outcomes[2].first_token_ms, 5) << "without outputs: when its prompt was computed";
  EXPECT_EQ(engine.totals().generated_tokens, 1);
}

TEST(VirtualEngine, WithoutAnyReservationRefusesAll) {
  const Traffic traffic = traffic_of({{.input_length = 3, .output_length = 2}, {.input_length = 2}});
  FlatCacheManager manager(FlatCacheShape{0, 100, kBytesPerToken});
  std::vector<RequestOutcome> outcomes(2);
  VirtualEngine engine(traffic, manager, {.max_batch_tokens = 8, .max_sequences = 4}, {.constant_ms = 1},
                       outcomes);
  engine.add(0, 5);
  engine.add(1, 5);
  while (engine.has_work()) engine.run_pass();
  for (const RequestOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.state, RequestOutcome::State::refused);
    EXPECT_EQ(outcome.end_ms, 5);
  }
  EXPECT_EQ(engine.totals().passes, 0);
  EXPECT_EQ(engine.tokens_in_hand(), 0);
}

TEST(VirtualEngine, RefusesImpossibleSettings) {
  const Traffic traffic = traffic_of({{.input_length = 1}});
  PagedManager manager({2, 4, kBytesPerToken});
  std::vector<RequestOutcome> outcomes(1);
  const SchedulerSettings impossible{.max_batch_tokens = 1, .max_sequences = 2};
  EXPECT_THROW(VirtualEngine(traffic, manager, impossible, PassCost(), outcomes), InputError);
}

TEST(VirtualEngine, KeepsTheTimeOfAPassThatRuns) {
  const Traffic traffic = traffic_of({{.input_length = 4, .output_length = 3}, {.input_length = 2}});
  PagedManager manager({8, 4, kBytesPerToken});
  std::vector<RequestOutcome> outcomes(2);
  VirtualEngine engine(traffic, manager, {.max_batch_tokens = 8, .max_sequences = 2},
                       {.constant_ms = 10, .row_ms = 1}, outcomes);
  engine.add(0, 7);
  EXPECT_EQ(engine.ready_ms(), 7) << "idle until then";
  engine.run_pass();
  EXPECT_EQ(engine.ready_ms(), 7 + 10 + 4);
  engine.add(1, 9);
  EXPECT_EQ(engine.ready_ms(), 21) << "a pass is running";
  engine.run_pass();
  EXPECT_EQ(engine.ready_ms(), 21 + 10 + 1 + 2);
  EXPECT_EQ(engine.computing(), 2);
  EXPECT_EQ(engine.totals().generated_tokens, 1) << "the outputs of this pass come at its end";
  EXPECT_EQ(engine.tokens_in_hand(), 7 + 2);
  engine.end_pass_by(33);
  EXPECT_EQ(outcomes[1].first_token_ms, 0);
  engine.end_pass_by(34);
  EXPECT_EQ(outcomes[1].first_token_ms, 34);
  EXPECT_EQ(outcomes[1].state, RequestOutcome::State::done);
  EXPECT_EQ(engine.computing(), 0);
  EXPECT_EQ(engine.tokens_in_hand(), 7);
  EXPECT_TRUE(engine.run_pass());
  EXPECT_TRUE(engine.has_work());
  EXPECT_FALSE(engine.run_pass()) << "it ends a pass alone";
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(outcomes[0].first_token_ms, 21);
  EXPECT_EQ(outcomes[0].end_ms, 45);
  EXPECT_EQ(engine.totals().busy_ms, 14 + 13 + 11);
  EXPECT_EQ(engine.totals().sequence_ms, 14 + 2 * 13 + 11);
}

}  // namespace
}  // namespace kvcache
