// The policy of continuous batching without a model: which sequences are admitted, preempted or stuck, and
// that every sequence ends. Ids are made up; the managers are the real ones. SC1 and the like: shared cases
// of faults that users of such schedulers have reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "common/base/error.h"
#include "common/engine/scheduler.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 4;

/// A scheduler at work. A sequence's number is also its age.
class Play {
 public:
  Play(std::unique_ptr<KvManager> manager, const SchedulerSettings& settings)
      : manager(std::move(manager)), scheduler(*this->manager, settings), settings_(settings) {}

  /// A sequence of `prompt` made-up ids, the first `shared` of them common to all, that wants `outputs` more.
  std::int32_t add(std::int64_t prompt, std::int64_t outputs, std::int64_t shared = 0,
                   std::int64_t forks = 0) {
    ScheduledSequence& sequence = make(outputs);
    for (std::int32_t n = 0; n < prompt; ++n)
      sequence.token_ids.push_back(n < shared ? n : 1000 * (sequence.id + 1) + n);
    sequence.forks = forks;
    scheduler.add(sequence);
    return sequence.id;
  }

  /// Runs one pass. Each sequence whose turn is complete gets an id, and ends when it has all its ids. A
  /// stuck sequence ends first. False if nothing is left to do.
  bool step() {
    const std::int64_t preempted = scheduler.preemptions();
    NextPass pass = scheduler.next();
    for (; pass.stuck != nullptr; pass = scheduler.next()) {
      stuck.push_back(pass.stuck->id);
      scheduler.remove(*pass.stuck);
      scheduler.check_invariants();
    }
    turns.clear();
    rows = pass.plan.tokens();
    for (const NextPass::Turn& turn : pass.turns) turns.push_back(turn.sequence->id);
    if (pass.turns.empty()) return false;
    EXPECT_EQ(pass.plan.sequences, turns);
    if (!settings_.prefill_alone) {
      EXPECT_EQ(turns.front(), scheduler.running().front()->id) << "the oldest has no turn";
      EXPECT_LE(rows, settings_.max_batch_tokens);
      if (scheduler.preemptions() == preempted) expect_half_for_the_prompt_in_progress(pass);
    }
    plan = pass.plan;
    scheduler.commit(pass);
    got.clear();
    for (const NextPass::Turn& turn : pass.turns) {
      if (turn.complete()) expect_ids(*turn.sequence);
    }
    if (prepares) scheduler.prepare();
    for (const std::int32_t id : got)
      sequence(id).token_ids.replace_back(static_cast<std::int32_t>(100000 * (id + 1) + outputs_[id]));
    scheduler.check_invariants();
    ++steps;
    return true;
  }
  void run() {
    while (step()) ASSERT_LT(steps, 100000);
    EXPECT_TRUE(scheduler.running().empty() && scheduler.waiting().empty());
    EXPECT_TRUE(nothing_is_held());
  }

  /// Whether all memory is free: blocks, and the reservations of step 2, which `blocks()` does not count.
  bool nothing_is_held() const {
    const CacheState state = manager->state();
    return state.sequences.empty() && state.free.size() == state.references.size();
  }
  std::int64_t outputs(std::int32_t id) const { return outputs_.at(id); }
  ScheduledSequence& sequence(std::int32_t id) { return sequences_.at(static_cast<std::size_t>(id)); }
  bool ended(std::int32_t id) const { return outputs_.at(id) == wanted_.at(id); }

  std::unique_ptr<KvManager> manager;
  Scheduler scheduler;
  bool prepares = false;                 // the next pass while one is computed
  PassPlan plan;                         // of the last step
  std::vector<std::int32_t> turns, got;  // of the last step: who was in it, who got an id
  std::vector<std::int32_t> stuck;       // who ended because it was
  std::int64_t rows = 0;                 // of the last step
  std::int64_t steps = 0;

 private:
  ScheduledSequence& make(std::int64_t outputs) {
    ScheduledSequence& sequence = sequences_.emplace_back();
    sequence.id = static_cast<std::int32_t>(sequences_.size()) - 1;
    wanted_[sequence.id] = outputs;
    outputs_[sequence.id] = 0;
    return sequence;
  }

  /// A prompt that began in an earlier pass and does not end in this one gets half of the rows that decode
  /// leaves, and no row is left over.
  void expect_half_for_the_prompt_in_progress(const NextPass& pass) const {
    std::int64_t left = settings_.max_batch_tokens;
    for (const NextPass::Turn& turn : pass.turns) left -= turn.sequence->decodes ? 1 : 0;
    for (const NextPass::Turn& turn : pass.turns) {
      if (turn.complete() || turn.sequence->stored == 0) continue;
      EXPECT_GE(2 * (turn.end - turn.sequence->stored), left) << "sequence " << turn.sequence->id;
      EXPECT_EQ(rows, settings_.max_batch_tokens) << "a row is given to nobody";
    }
  }

  /// Removes a sequence whose last id is still being computed, before the id is known.
  void expect_ids(ScheduledSequence& sequence) {
    std::vector<ScheduledSequence*> children;
    for (std::int64_t n = 0; n < sequence.forks; ++n) {
      ScheduledSequence& child = make(wanted_[sequence.id]);
      child.token_ids = sequence.token_ids;
      children.push_back(&child);
    }
    if (!children.empty()) scheduler.fork(sequence, children);
    children.push_back(&sequence);
    for (ScheduledSequence* each : children) {
      each->token_ids.push_back(kUnknownToken);
      got.push_back(each->id);
      if (++outputs_[each->id] == wanted_[each->id]) scheduler.remove(*each);
    }
  }

  SchedulerSettings settings_;
  std::deque<ScheduledSequence> sequences_;
  std::map<std::int32_t, std::int64_t> wanted_, outputs_;
};

std::unique_ptr<KvManager> flat(std::int64_t sequences, std::int64_t max_seq_len) {
  return std::make_unique<FlatCacheManager>(FlatCacheShape{sequences, max_seq_len, 1});
}
std::unique_ptr<KvManager> paged(std::int64_t blocks) {
  return std::make_unique<PagedManager>(PagedShape{blocks, kBlockSize, 1});
}
std::unique_ptr<KvManager> sharing(std::int64_t blocks, std::int64_t host_blocks = 0) {
  return std::make_unique<PrefixCachingManager>(PagedShape{blocks, kBlockSize, 1},
                                                SharingSettings{.host_blocks = host_blocks});
}

/// Managers of every step, with room for a few long sequences.
std::vector<std::unique_ptr<KvManager>> roomy_managers() {
  std::vector<std::unique_ptr<KvManager>> managers;
  managers.push_back(flat(4, 1000));
  managers.push_back(paged(1000));
  managers.push_back(sharing(1000));
  return managers;
}

using Ids = std::vector<std::int32_t>;

// Preparing

/// Two schedulers with the same arrivals, ends and cancellations. One of them prepares its passes.
class Twins {
 public:
  Twins(const std::function<std::unique_ptr<KvManager>()>& manager, const SchedulerSettings& settings)
      : plays{Play(manager(), settings), Play(manager(), settings)} {
    plays[1].prepares = true;
  }

  /// Random arrivals and sudden ends, then a pass.
  void step(std::mt19937& random) {
    const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random()) % end; };
    for (std::int64_t arrivals = below(4) == 0 ? below(3) : 0; arrivals > 0; --arrivals) {
      const std::int64_t prompt = 1 + below(14), outputs = 1 + below(9);
      const std::int64_t shared = below(2) * 8, forks = can_fork() ? below(8) / 6 : 0;
      for (Play& play : plays) play.add(prompt, outputs, shared, forks);
    }
    const auto& got = plays[0].got;
    if (!got.empty() && below(6) == 0) {
      const std::int32_t gone = got[static_cast<std::size_t>(below(std::ssize(got)))];
      for (Play& play : plays) play.scheduler.remove(play.sequence(gone));
    }
    prepared += plays[1].scheduler.prepared() ? 1 : 0;
    const bool worked = plays[0].step();
    EXPECT_EQ(plays[1].step(), worked);
    if (worked) expect_same();
  }

  Play plays[2];
  std::int64_t prepared = 0;

 private:
  bool can_fork() const { return plays[0].manager->can_fork(); }
  void expect_same() const {
    const PassPlan &plain = plays[0].plan, &prepared = plays[1].plan;
    ASSERT_EQ(prepared.sequences, plain.sequences);
    ASSERT_EQ(prepared.token_ids, plain.token_ids);
    ASSERT_EQ(prepared.positions, plain.positions);
    ASSERT_EQ(prepared.slots, plain.slots);
    ASSERT_EQ(prepared.block_table, plain.block_table);
    ASSERT_EQ(prepared.swaps_in.size(), plain.swaps_in.size());
    ASSERT_EQ(prepared.swaps_out.size(), plain.swaps_out.size());
    ASSERT_EQ(prepared.copies.size(), plain.copies.size());
    ASSERT_EQ(plays[0].stuck, plays[1].stuck);
  }
};

TEST(Scheduler, PlansTheSamePassesWhetherTheyArePreparedOrNot) {
  const std::function<std::unique_ptr<KvManager>()> managers[] = {
      [] { return flat(3, 20); }, [] { return paged(11); }, [] { return sharing(11, 6); }};
  for (const auto& manager : managers) {
    std::mt19937 random(7);
    Twins twins(manager, {.max_batch_tokens = 9, .max_sequences = 5});
    for (int step = 0; step < 3000 && !testing::Test::HasFatalFailure(); ++step) {
      SCOPED_TRACE(step);
      twins.step(random);
    }
    const Scheduler& prepares = twins.plays[1].scheduler;
    EXPECT_GT(twins.prepared, 500);
    EXPECT_EQ(prepares.preemptions(), twins.plays[0].scheduler.preemptions());
  }
}

TEST(Scheduler, PreparesAPassWithOneWhoTakesThePlaceOfAnotherThatEnds) {
  Play play(paged(4), {.max_batch_tokens = 8, .max_sequences = 4});
  play.prepares = true;
  play.add(7, 2);
  play.add(9, 3);
  play.add(4, 1);
  while (!play.ended(0)) ASSERT_TRUE(play.step());
  EXPECT_TRUE(play.scheduler.prepared());
  EXPECT_EQ(play.scheduler.waiting().size(), 1U) << "the second is admitted, the third has no rows left";
  play.scheduler.remove(play.sequence(1));
  EXPECT_FALSE(play.scheduler.prepared());
  EXPECT_TRUE(play.nothing_is_held());
  EXPECT_EQ(play.scheduler.waiting().front()->id, 2);
  play.step();
  EXPECT_EQ(play.turns, Ids{2});
}

TEST(Scheduler, TakesAPreparedPassBackForOneWhoCanJoinIt) {
  Play play(paged(20), {.max_batch_tokens = 8, .max_sequences = 4});
  play.prepares = true;
  play.add(3, 9);
  play.step();
  EXPECT_TRUE(play.scheduler.prepared());
  play.add(3, 9);
  EXPECT_FALSE(play.scheduler.prepared());
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1}));
}

// Coming and going

TEST(Scheduler, GivesEveryoneWhoDecodesARowAndTheRestToPrompts) {
  Play play(paged(100), {.max_batch_tokens = 8, .max_sequences = 4});
  play.add(5, 9);
  play.add(20, 9);
  ASSERT_TRUE(play.step());
  EXPECT_EQ(play.turns, (Ids{0, 1}));
  EXPECT_EQ(play.rows, 8) << "five for the first prompt, three for the second";
  EXPECT_EQ(play.got, Ids{0}) << "the second is in the middle of its prompt";
  ASSERT_TRUE(play.step());
  EXPECT_EQ(play.rows, 8) << "one and seven";
  play.step();
  EXPECT_EQ(play.got, Ids{0});
  play.step();
  EXPECT_EQ(play.rows, 4) << "one, and the last three of the prompt";
  EXPECT_EQ(play.got, (Ids{0, 1}));
  play.step();
  EXPECT_EQ(play.rows, 2);
}

TEST(Scheduler, StartsShortRequestsBesideALongPrompt) {
  for (const bool prepares : {false, true}) {
    Play play(paged(100), {.max_batch_tokens = 16, .max_sequences = 4});
    play.prepares = prepares;
    play.add(100, 3);
    play.step();
    EXPECT_EQ(play.sequence(0).stored, 16);
    play.add(3, 2);
    play.add(5, 2);
    play.add(1, 2);
    play.step();
    EXPECT_EQ(play.turns, (Ids{0, 1, 2})) << "three and five are half of the rows";
    EXPECT_EQ(play.got, (Ids{1, 2}));
    EXPECT_EQ(play.sequence(0).stored, 16 + 8);
    play.step();
    EXPECT_EQ(play.turns, (Ids{0, 1, 2, 3}));
    EXPECT_EQ(play.sequence(0).stored, 16 + 8 + 13);
    play.run();
    for (std::int32_t n = 0; n < 4; ++n) EXPECT_TRUE(play.ended(n));
    EXPECT_EQ(play.scheduler.preemptions(), 0);
  }
}

TEST(Scheduler, StartsNoSecondLongPromptBesideALongOneAndLetsNobodyOvertakeIt) {
  Play play(paged(100), {.max_batch_tokens = 16, .max_sequences = 4});
  play.add(60, 3);
  play.add(9, 2);  // one more than half of the rows
  play.add(1, 2);
  for (const std::int64_t stored : {16, 32, 48}) {
    play.step();
    EXPECT_EQ(play.turns, Ids{0});
    EXPECT_EQ(play.sequence(0).stored, stored);
  }
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1})) << "the last twelve leave four, with which the second begins";
  EXPECT_EQ(play.got, Ids{0});
  play.step();
  EXPECT_EQ(play.got, (Ids{0, 1, 2}));
}

// However many requests come, a prompt gets half of the rows that decode leaves: here six of twelve or more.
TEST(Scheduler, BringsALongPromptToItsEndHoweverManyShortRequestsCome) {
  for (std::unique_ptr<KvManager>& manager : roomy_managers()) {
    Play play(std::move(manager), {.max_batch_tokens = 16, .max_sequences = 4});
    play.add(600, 1);
    while (!play.ended(0)) {
      while (play.scheduler.waiting().size() < 3) play.add(2, 1);
      ASSERT_TRUE(play.step());
      ASSERT_LE(play.steps, 600 / 6 + 1);
    }
    EXPECT_TRUE(play.ended(100)) << "they were begun beside it";
  }
}

TEST(Scheduler, KeepsTheMemoryForTheRestOfALongPromptWhenOthersStartBesideIt) {
  for (const std::int64_t beside : {4, 5}) {  // one block, and two
    Play play(paged(10), {.max_batch_tokens = 16, .max_sequences = 4});
    play.add(33, 1);  // nine blocks, of which the first chunk takes four
    play.step();
    play.add(beside, 1);
    play.step();
    EXPECT_EQ(play.turns, beside == 4 ? (Ids{0, 1}) : Ids{0});
    play.run();
    EXPECT_EQ(play.scheduler.preemptions(), 0);
  }
}

TEST(Scheduler, AdmitsNewOnesAndLetsFinishedOnesLeaveAtAnyStep) {
  Play play(paged(100), {.max_batch_tokens = 64, .max_sequences = 3});
  play.add(3, 2);
  play.add(3, 5);
  play.step();
  play.add(3, 2);
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1, 2})) << "the third is admitted beside those that decode";
  play.step();
  EXPECT_EQ(play.turns, (Ids{1, 2})) << "the first has left";
  play.run();
  EXPECT_EQ(play.steps, 5);
}

TEST(Scheduler, NeverLetsASmallOneOvertakeALargeOneThatWaits) {
  Play play(paged(10), {.max_batch_tokens = 64, .max_sequences = 8});
  play.add(24, 6);  // six blocks, later eight
  play.add(20, 2);  // five: has to wait
  play.add(1, 1);   // would fit
  for (int n = 0; n < 6; ++n) {
    play.step();
    EXPECT_EQ(play.turns, Ids{0});
  }
  play.step();
  EXPECT_EQ(play.turns, (Ids{1, 2}));
}

TEST(Scheduler, LetsNoMoreRunThanThereAreSeats) {
  Play play(paged(100), {.max_batch_tokens = 64, .max_sequences = 2});
  for (int n = 0; n < 5; ++n) play.add(2, 3);
  while (play.step()) EXPECT_LE(play.turns.size(), 2U);
  for (std::int32_t n = 0; n < 5; ++n) EXPECT_TRUE(play.ended(n));
}

TEST(Scheduler, KeepsSeatsForThoseThatWillFork) {
  Play play(sharing(100), {.max_batch_tokens = 64, .max_sequences = 4});
  play.add(2, 9);
  play.add(30, 3, 0, /*forks=*/2);
  play.add(2, 9);
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1})) << "the third would have the seat of a fork";
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1, 3, 4})) << "forks are the next younger ones";
  play.step();
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 2}));
  play.run();
}

TEST(Scheduler, LetsALeadWaitUntilItsForksHaveSeatsToo) {
  Play play(sharing(100), {.max_batch_tokens = 64, .max_sequences = 3});
  play.add(2, 3);
  play.add(2, 3, 0, /*forks=*/2);
  for (int n = 0; n < 3; ++n) {
    play.step();
    EXPECT_EQ(play.turns, Ids{0});
  }
  play.step();
  EXPECT_EQ(play.turns, Ids{1});
  play.run();
}

TEST(Scheduler, AdmitsTheWholeOfAPromptNotItsFirstChunkAlone) {
  Play play(paged(10), {.max_batch_tokens = 4, .max_sequences = 4});
  play.add(21, 4);  // six blocks
  play.add(20, 2);  // five: its first chunk would fit, the rest never
  while (!play.ended(0)) {
    play.step();
    EXPECT_EQ(play.turns, Ids{0});
  }
  play.run();
  EXPECT_EQ(play.scheduler.preemptions(), 0);
}

// Of 200 blocks two are kept free. Beside 190 others eight can then be taken, not nine; alone, all of them.
TEST(Scheduler, KeepsTheWatermarkFreeWhenOneIsAdmittedBesideOthers) {
  const SchedulerSettings settings{.max_batch_tokens = 1000, .max_sequences = 4};
  for (const bool shares : {false, true}) {
    for (const std::int64_t blocks : {8, 9, 10}) {
      for (const bool together : {false, true}) {
        SCOPED_TRACE(testing::Message() << blocks << " blocks beside others, shared: " << shares
                                        << ", admitted together: " << together);
        Play play(shares ? sharing(200) : paged(200), settings);
        play.add(190 * kBlockSize - 2, 3);
        if (!together) play.step();
        play.add(blocks * kBlockSize, 1);
        play.step();
        EXPECT_EQ(play.turns, blocks == 8 ? (Ids{0, 1}) : Ids{0});
        play.run();
        EXPECT_TRUE(play.ended(0) && play.ended(1));
        EXPECT_EQ(play.scheduler.preemptions(), 0);
      }
    }
    Play alone(shares ? sharing(200) : paged(200), settings);
    alone.add(200 * kBlockSize, 1);
    alone.run();
    EXPECT_TRUE(alone.ended(0)) << "shared: " << shares;
  }
}

TEST(Scheduler, GivesNoRowToWhatIsCached) {
  Play play(sharing(40), {.max_batch_tokens = 8, .max_sequences = 4});
  play.add(25, 1, 24);
  while (play.step()) {
  }
  play.add(29, 1, 24);
  play.step();
  EXPECT_EQ(play.rows, 5);
  EXPECT_EQ(play.got, Ids{1}) << "done in one step";
}

// SC12, and impossible settings.
TEST(Scheduler, RefusesSettingsThatCannotBe) {
  EXPECT_THROW(Play(paged(4), {.max_batch_tokens = 4, .max_sequences = 5}), InputError);
  EXPECT_THROW(Play(paged(4), {.max_batch_tokens = 4, .max_sequences = 0}), InputError);
  EXPECT_NO_THROW(Play(paged(4), {.max_batch_tokens = 4, .max_sequences = 4}));
}

TEST(Scheduler, ComputesAPromptAloneWhereItIsAskedTo) {
  Play play(sharing(100), {.prefill_alone = true});
  play.add(9, 3, 8);
  play.add(9, 3, 8);
  play.step();
  EXPECT_EQ(play.turns, Ids{0});
  play.step();
  EXPECT_EQ(play.turns, Ids{1});
  EXPECT_EQ(play.rows, 1) << "it hits what the first has filled";
  play.step();
  EXPECT_EQ(play.turns, (Ids{0, 1}));
}

// Preemption

// SC10: the youngest is preempted, as documented, however much of its work is lost.
TEST(Scheduler, PreemptsTheYoungestHoweverMuchItHasDone) {
  Play play(paged(12), {.max_batch_tokens = 64, .max_sequences = 8});
  play.add(4, 30);
  play.add(38, 4);  // ten blocks
  play.add(30, 1);  // has to wait
  play.step();
  play.step();
  EXPECT_EQ(play.sequence(1).stored, 39);
  while (play.scheduler.preemptions() == 0) play.step();
  EXPECT_EQ(play.sequence(1).preemptions, 1);
  EXPECT_EQ(play.sequence(1).stored, 0);
  EXPECT_EQ(play.scheduler.waiting().front(), &play.sequence(1));
  EXPECT_EQ(play.sequence(0).preemptions, 0);
  play.run();
  EXPECT_TRUE(play.ended(0) && play.ended(1));
}

// Each of the twelve sequences is preempted when older ones grow, and admitted again when one of them ends.
// Without a bound, the last would be preempted seven times.
TEST(Scheduler, PreemptsNobodyMoreOftenThanItSays) {
  Play play(paged(38), {.max_batch_tokens = 1000, .max_sequences = 100});
  for (std::int64_t n = 0; n < 12; ++n) play.add(1 + n % 3, 9 + 8 * n);
  play.add(5, 60);
  play.run();
  std::int64_t most = 0;
  for (std::int32_t n = 0; n <= 12; ++n) {
    EXPECT_TRUE(play.ended(n));
    most = std::max(most, play.sequence(n).preemptions);
  }
  EXPECT_EQ(most, Scheduler::kMaxPreemptions);
}

// SC2: a sequence that comes back has all its ids, and does not compute cached tokens again.
TEST(Scheduler, TakesUpWhereItWasWhenASequenceComesBack) {
  for (const std::int64_t held : {8, 9, 11}) {
    Play play(sharing(20), {.max_batch_tokens = 64, .max_sequences = 4, .preempt_every = 3});
    play.add(held - 1, 4);
    play.step();
    play.step();
    const TokenIds before = play.sequence(0).token_ids;
    ASSERT_EQ(play.sequence(0).stored, held);
    play.step();  // is preempted and admitted again at once
    EXPECT_EQ(play.scheduler.preemptions(), 1);
    EXPECT_EQ(play.rows, held + 1 - held / kBlockSize * kBlockSize) << "the full blocks were found";
    const TokenIds& after = play.sequence(0).token_ids;
    EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin(), after.end() - 1));
    play.run();
    EXPECT_EQ(play.outputs(0), 4);
  }
}

// A sequence that comes back computes its prompt again, also in chunks.
TEST(Scheduler, KeepsToItsRowsWhenAPreemptedSequenceComesBack) {
  for (std::unique_ptr<KvManager>& manager : roomy_managers()) {
    Play play(std::move(manager), {.max_batch_tokens = 16, .max_sequences = 4, .preempt_every = 2});
    play.add(40, 80);
    play.add(900, 6);  // is preempted beside the first, and when it is alone
    play.run();        // looks at the rows of every pass
    EXPECT_TRUE(play.ended(0) && play.ended(1));
    EXPECT_GT(play.scheduler.preemptions(), 1);
  }
}

// A prompt with one token left for its last chunk looks like a decoding sequence. If it were preempted there,
// it would never get out of its prompt.
TEST(Scheduler, GetsThroughEveryPromptHoweverOftenPreemptionIsForced) {
  for (const std::int64_t prompt : {17, 33, 49}) {  // chunks of 16, and one token
    for (std::unique_ptr<KvManager>& manager : roomy_managers()) {
      Play play(std::move(manager), {.max_batch_tokens = 16, .max_sequences = 3, .preempt_every = 1});
      for (int n = 0; n < 3; ++n) play.add(prompt, 5);
      while (play.step()) ASSERT_LE(play.steps, 3 * 5 * (prompt / 16 + 1)) << "all of it anew for each id";
      for (std::int32_t n = 0; n < 3; ++n) EXPECT_TRUE(play.ended(n)) << "prompt of " << prompt;
      EXPECT_GT(play.scheduler.preemptions(), 0);
    }
  }
}

// SC4: every block is in use, and a common prefix is most of the pool.
TEST(Scheduler, BringsAllToTheirEndsWhenMostOfThePoolIsShared) {
  Play play(sharing(12), {.max_batch_tokens = 16, .max_sequences = 8});
  for (int n = 0; n < 5; ++n) play.add(7 * kBlockSize + 3, 15, 7 * kBlockSize);
  play.run();
  EXPECT_TRUE(play.stuck.empty());
  for (std::int32_t n = 0; n < 5; ++n) {
    EXPECT_EQ(play.outputs(n), 15);
    EXPECT_LE(play.sequence(n).preemptions, Scheduler::kMaxPreemptions);
  }
  EXPECT_LT(play.steps, 5 * (15 + 3));
}

// SC4, SC6: in a pool of any size each pass brings the oldest on, and no sequence is preempted for ever.
TEST(Scheduler, EndsEverythingInBoundedStepsAtEverySizeOfThePool) {
  for (const bool shares : {false, true}) {
    for (std::int64_t blocks = 3; blocks < 30; ++blocks) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks, shared: " << shares);
      Play play(shares ? sharing(blocks, blocks % 5) : paged(blocks),
                {.max_batch_tokens = 9, .max_sequences = 6});
      std::int64_t alone = 0;  // steps that all take one after the other: a prompt's chunks, then an id each
      for (int n = 0; n < 20; ++n) {
        const std::int64_t prompt = 1 + n * 7 % 12, outputs = 1 + n * 11 % 23;
        play.add(prompt, outputs, shares ? prompt / 2 : 0);
        alone += (prompt + 8) / 9 + outputs - 1;
      }
      play.run();
      EXPECT_LE(play.steps, alone) << "together they are slower than one after the other";
      for (std::int32_t n = 0; n < 20; ++n) {
        EXPECT_LE(play.sequence(n).preemptions, Scheduler::kMaxPreemptions);
        const bool is_stuck = std::ranges::count(play.stuck, n) == 1;
        EXPECT_NE(play.ended(n), is_stuck) << "sequence " << n << " was lost";
      }
    }
  }
}

// Being stuck

// SC1: a prompt of p and n new ids need ceil((p + n - 1) / block_size) blocks, and no more.
TEST(Scheduler, NeedsExactlyTheBlocksOfTheFormula) {
  for (const bool shares : {false, true}) {
    for (std::int64_t prompt = 1; prompt <= 9; ++prompt) {
      for (std::int64_t outputs = 1; outputs <= 9; ++outputs) {
        const std::int64_t blocks = (prompt + outputs - 1 + kBlockSize - 1) / kBlockSize;
        const SchedulerSettings settings{.max_batch_tokens = 3, .max_sequences = 2};
        Play enough(shares ? sharing(blocks) : paged(blocks), settings);
        enough.add(prompt, outputs);
        enough.run();
        EXPECT_TRUE(enough.ended(0)) << prompt << " + " << outputs;
        if (blocks == 1) continue;
        Play fewer(shares ? sharing(blocks - 1) : paged(blocks - 1), settings);
        fewer.add(prompt, outputs);
        fewer.run();
        EXPECT_EQ(fewer.stuck, Ids{0});
        EXPECT_EQ(fewer.outputs(0), std::max<std::int64_t>(0, (blocks - 1) * kBlockSize - prompt + 1));
      }
    }
  }
}

// Beside a pinned prefix, too: whether a sequence computed a copy of a pinned block or found it, it gets
// every id that its pool has room for, as it would after a preemption.
TEST(Scheduler, ASequenceAloneGetsWhatFitsBesideAPinnedPrefixThatItRunsInto) {
  constexpr std::int32_t kPinned = 1000;
  constexpr std::int64_t kOutputs = 12;
  const auto first_ids = [](std::int64_t count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  };
  std::int64_t preempted = 0;
  for (std::int64_t block_size = 1; block_size <= 4; ++block_size) {
    for (std::int64_t blocks = 3; blocks <= 8; ++blocks) {
      for (std::int64_t prefix = 1; prefix <= 9; ++prefix) {
        for (std::int64_t prompt = 1; prompt <= prefix + 2; ++prompt) {
          for (const bool prefix_cache : {true, false}) {
            for (const bool prefill_alone : {true, false}) {
              SCOPED_TRACE(::testing::Message()
                           << blocks << " blocks of " << block_size << ", prefix " << prefix << ", prompt "
                           << prompt << (prefix_cache ? "" : ", no cache")
                           << (prefill_alone ? ", alone" : ""));
              PrefixCachingManager manager(PagedShape{blocks, block_size, 1}, {.prefix_cache = prefix_cache});
              const std::vector<std::int32_t> pinned = first_ids(prefix);
              const std::optional<PassPlan> plan = manager.plan(std::vector<Work>{{kPinned, pinned}});
              if (!plan) continue;
              manager.commit(*plan);
              manager.pin(kPinned);

              std::vector<std::int32_t> ids = first_ids(prompt);
              if (prompt > manager.capacity_for(ids, "")) continue;
              while (std::ssize(ids) < prompt + kOutputs && std::ssize(ids) <= manager.capacity_for(ids, ""))
                ids.push_back(static_cast<std::int32_t>(ids.size()));

              ScheduledSequence sequence;
              for (const std::int32_t id : first_ids(prompt)) sequence.token_ids.push_back(id);
              Scheduler scheduler(manager, {.prefill_alone = prefill_alone});
              scheduler.add(sequence);
              for (int pass = 0; std::ssize(sequence.token_ids) < prompt + kOutputs; ++pass) {
                ASSERT_LT(pass, 100);
                const NextPass next = scheduler.next();
                if (next.stuck != nullptr) break;
                scheduler.commit(next);
                sequence.token_ids.push_back(static_cast<std::int32_t>(std::ssize(sequence.token_ids)));
              }
              EXPECT_EQ(std::ssize(sequence.token_ids), std::ssize(ids));
              preempted += scheduler.preemptions();
              scheduler.remove(sequence);
              scheduler.check_invariants();
            }
          }
        }
      }
    }
  }
  EXPECT_GT(preempted, 0);
}

// SC3: a sequence is too large for the pool from the start, or becomes so. The others go on.
TEST(Scheduler, EndsWhoCanNeverGoOnAndLetsTheOthersRun) {
  Play play(paged(8), {.max_batch_tokens = 8, .max_sequences = 4});
  play.add(3, 5);
  play.add(33, 1);    // one token too many
  play.add(30, 200);  // too many in time
  play.add(32, 1);    // just enough
  play.add(2, 5);
  play.run();
  EXPECT_EQ(play.stuck, (Ids{1, 2}));
  EXPECT_EQ(play.outputs(2), 3) << "8 * 4 - 30 + 1";
  for (const std::int32_t id : {0, 3, 4}) EXPECT_TRUE(play.ended(id)) << id;
}

TEST(Scheduler, EndsAFlatSequenceThatIsFullWithoutPreemptingOthers) {
  Play play(flat(3, 10), {.max_batch_tokens = 16, .max_sequences = 8});
  play.add(4, 50);
  play.add(8, 50);
  play.add(2, 3);
  play.add(2, 3);  // waits for a reservation
  play.run();
  EXPECT_EQ(play.scheduler.preemptions(), 0);
  EXPECT_EQ(play.stuck, (Ids{1, 0}));
  EXPECT_EQ(play.outputs(0), 7);
  EXPECT_EQ(play.outputs(1), 3);
  EXPECT_TRUE(play.ended(2) && play.ended(3));
}

// Ten blocks, four of them pinned. A fork that only shares takes no block, so both sequences run when they
// get the id that six blocks do not hold. Neither is preempted for the other in vain. A sequence with a salt
// of its own has the same room, although it begins with the prefix.
TEST(Scheduler, EndsWhoOutgrowsWhatAPinnedPrefixLeavesWithoutPreemptingOthers) {
  for (const std::string salt : {"", "alice"}) {
    Play play(sharing(10), {.max_batch_tokens = 64, .max_sequences = 2});
    constexpr std::int32_t prefix = 1000;
    Ids prefix_ids(4 * kBlockSize);
    std::ranges::generate(prefix_ids, [n = 0]() mutable { return n++; });  // those that all share
    const Work work{prefix, prefix_ids};
    const std::optional<PassPlan> plan = play.manager->plan({&work, 1});
    ASSERT_TRUE(plan);
    play.manager->commit(*plan);
    play.manager->pin(prefix);

    const std::int32_t parent = play.add(6 * kBlockSize, 9, salt.empty() ? 0 : 4 * kBlockSize, /*forks=*/1);
    play.sequence(parent).salt = salt;
    const std::int32_t waits = play.add(5 * kBlockSize, 3, 4 * kBlockSize);
    play.step();
    EXPECT_EQ(play.turns, Ids{parent});
    const std::int32_t child = waits + 1;
    EXPECT_EQ(play.got, (Ids{child, parent}));
    play.step();
    EXPECT_EQ(play.stuck, (Ids{parent, child})) << "at once";
    EXPECT_EQ(play.scheduler.preemptions(), 0);
    EXPECT_EQ(play.turns, Ids{waits});
    while (play.step()) {
    }
    EXPECT_TRUE(play.ended(waits));
    EXPECT_EQ(play.manager->blocks().in_use, 4) << "the prefix stays";
  }
}

// Moving to the host tier and back

// SW2: a sequence that was moved out comes back. With room in the host tier only tails are computed again.
TEST(Scheduler, MovesWhatIsPreemptedToTheHostTierAndBack) {
  const auto recomputed = [](std::int64_t host_blocks, CountersReport& counters) {
    Play play(sharing(14, host_blocks), {.max_batch_tokens = 64, .max_sequences = 8});
    play.add(8, 40);
    play.add(32, 12);
    std::int64_t rows = 0;
    while (play.step()) rows += play.rows;
    EXPECT_TRUE(play.ended(0) && play.ended(1));
    EXPECT_GT(play.scheduler.preemptions(), 0);
    counters = play.manager->counters();
    return rows - (8 + 40 - 1) - (32 + 12 - 1);
  };
  CountersReport counters;
  EXPECT_LE(recomputed(16, counters), Scheduler::kMaxPreemptions * kBlockSize);
  EXPECT_GT(counters.swaps_out, 0);
  EXPECT_GT(counters.swaps_in, 0);
  // SW3: a tier that is too small takes as many blocks as it can; the rest is computed again.
  CountersReport small;
  EXPECT_GT(recomputed(2, small), Scheduler::kMaxPreemptions * kBlockSize);
  EXPECT_GT(small.swaps_out, 0);
  CountersReport none;
  recomputed(0, none);
  EXPECT_EQ(none.swaps_out, 0);
}

/// A pool with sequences that are preempted again and again. A sequence that comes back must be planned from
/// the first token that neither the pool nor the host tier holds.
class ComingBack {
 public:
  ComingBack(std::int64_t blocks, std::int64_t host_blocks)
      : play_(sharing(blocks, host_blocks), {.max_batch_tokens = 10, .max_sequences = 5}),
        manager_(dynamic_cast<const PrefixCachingManager&>(*play_.manager)),
        tier_holds_all_(host_blocks > 100) {}

  void run() {
    for (int n = 0; n < 12; ++n) play_.add(1 + n * 7 % 15, 3 + n * 11 % 19);
    do {
      found_.clear();
      for (const ScheduledSequence* waiting : play_.scheduler.waiting()) look_for(*waiting);
      for (const ScheduledSequence* running : play_.scheduler.running())
        stored_[running->id] = running->stored;
    } while (play_.step() && (check(), true));
  }

  std::int64_t returns = 0;  // of sequences that had been preempted

 private:
  void look_for(const ScheduledSequence& sequence) {
    found_[sequence.id] = manager_.peek(sequence.token_ids);
    if (tier_holds_all_) {
      EXPECT_GE(found_[sequence.id], stored_[sequence.id] / kBlockSize * kBlockSize);
    }
  }
  void check() {
    for (std::size_t n = 0; n < play_.plan.sequences.size(); ++n) {
      const auto found = found_.find(play_.plan.sequences[n]);
      if (found == found_.end()) continue;
      const auto first_row = static_cast<std::size_t>(play_.plan.row_begin[n]);
      EXPECT_EQ(play_.plan.positions[first_row], found->second);
      returns += play_.sequence(found->first).preemptions > 0 ? 1 : 0;
    }
  }

  Play play_;
  const PrefixCachingManager& manager_;
  bool tier_holds_all_;
  std::map<std::int32_t, std::int64_t> found_;   // tokens, of those that wait
  std::map<std::int32_t, std::int64_t> stored_;  // tokens, of those that ran last
};

TEST(Scheduler, ComputesNothingAgainThatThePoolOrTheHostTierHolds) {
  for (const std::int64_t host_blocks : {0, 3, 200}) {
    std::int64_t returns = 0;
    for (std::int64_t blocks = 9; blocks < 18; ++blocks) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks, " << host_blocks << " in the host tier");
      ComingBack round(blocks, host_blocks);
      round.run();
      returns += round.returns;
    }
    EXPECT_GT(returns, 30);
  }
}

// SW9: nothing is moved for a sequence that cannot be admitted.
TEST(Scheduler, MovesNothingForOneThatCannotBeAdmitted) {
  Play play(sharing(8, 8), {.max_batch_tokens = 64, .max_sequences = 8});
  play.add(8, 20);
  play.add(28, 1);  // seven blocks
  play.add(4, 1);
  for (int n = 0; n < 15; ++n) play.step();
  EXPECT_EQ(play.manager->counters().swaps_out, 0);
  play.run();
}

// Leaving before the end

TEST(Scheduler, ForgetsWhoIsRemovedWhereverItIs) {
  Play play(sharing(8), {.max_batch_tokens = 8, .max_sequences = 4});
  play.add(4, 9);
  play.add(20, 9);
  play.add(8, 9);
  play.step();
  play.scheduler.remove(play.sequence(2));  // waits
  play.scheduler.remove(play.sequence(1));  // in its prompt
  play.scheduler.check_invariants();
  play.step();
  EXPECT_EQ(play.turns, Ids{0});
  play.scheduler.remove(play.sequence(0));  // decodes
  play.scheduler.remove(play.sequence(0));  // harmless
  EXPECT_TRUE(play.nothing_is_held());
  EXPECT_FALSE(play.step());
}

}  // namespace
}  // namespace kvcache
