// The serving engine with a model, in every step's cache. Every answer is that of its solo run, whatever its
// neighbours, chunks, preemptions and swaps. A request that ends or is cancelled frees all its memory, and no
// event is lost. SC1 and the like: shared cases of faults that users of such engines have reported.
#include "common/engine/engine.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "common/base/error.h"
#include "common/tokenizer/utf8.h"
#include "tests/support/damaged_model.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

const std::string kReplacement = "\uFFFD";

bool begins(const std::vector<std::int32_t>& whole, const std::vector<std::int32_t>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

class ServingEngine : public testing::TestWithParam<Kind> {
 protected:
  void load(std::vector<std::int32_t> eos_ids = {}) {
    model_ = reference_model("llama-mha", threads_, DType::f32, std::move(eos_ids));
  }
  void SetUp() override { load(); }

  ServingPlay play(std::int64_t blocks,
                   const SchedulerSettings& settings = {.max_batch_tokens = 16, .max_sequences = 8}) {
    return ServingPlay(GetParam(), blocks, *model_, threads_, settings, &tokenizer_);
  }
  bool shares() const { return GetParam() == Kind::sharing || GetParam() == Kind::tiered; }

  static GenerationRequest request(std::int64_t length, std::int64_t tokens, std::int32_t first = 5) {
    GenerationRequest result;
    for (std::int64_t n = 0; n < length; ++n)
      result.prompt_ids.push_back(static_cast<std::int32_t>(first + n * 31) % 700);
    result.max_tokens = tokens;
    return result;
  }
  static GenerationRequest sampled(GenerationRequest request, std::uint64_t seed) {
    request.sampling = {.temperature = 1.5, .seed = seed};
    return request;
  }

  /// The ids of one output, from the batch run with enough memory.
  std::vector<std::int32_t> alone(const GenerationRequest& asked, std::uint64_t sample = 0) {
    ServingCache cache(Kind::paged, 200, 4, model_->config(), threads_);
    Request request{asked.prompt_ids, asked.max_tokens, asked.ignore_eos, asked.sampling};
    request.sampling.seed += sample;
    return run(*model_, *cache.manager, *cache.store, {&request, 1}).sequences[0].output_ids;
  }

  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_;
  const Tokenizer tokenizer_{checkpoint_folder("llama-mha")};
};

/// In a flat cache no sequence is preempted.
class ServingEngineWithBlocks : public ServingEngine {};
class ServingEngineThatShares : public ServingEngine {};

/// With a model in which one token is damaged.
class ServingEngineWithADamagedToken : public ServingEngine {
 protected:
  void SetUp() override {
    model_ = loaded_model(damaged_.path(), threads_, DType::f32, std::vector<std::int32_t>{});
  }

  static GenerationRequest asking(std::vector<std::int32_t> prompt_ids, std::int64_t tokens) {
    GenerationRequest request;
    request.prompt_ids = std::move(prompt_ids);
    request.max_tokens = tokens;
    return request;
  }
  /// How a request ends in a run of its own: "length", or "error".
  SequenceReport report_of(const GenerationRequest& asked, std::uint64_t sample = 0) {
    ServingCache cache(Kind::paged, 200, 4, model_->config(), threads_);
    Request request{asked.prompt_ids, asked.max_tokens, asked.ignore_eos, asked.sampling};
    request.sampling.seed += sample;
    return run(*model_, *cache.manager, *cache.store, {&request, 1}).sequences[0];
  }
  /// A request whose random ids come upon the damaged token, first after id `from` and before id `by`.
  GenerationRequest going_bad(std::int64_t from, std::int64_t by, std::int64_t samples = 1) {
    for (std::uint64_t seed = 0; seed < 5000; ++seed) {
      GenerationRequest request = asking(good_prompt(9, 7), 60);
      request.sampling = {.temperature = 100, .seed = seed};  // any id, as good as
      request.samples = samples;
      std::int64_t bad = 0, first = by;
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        const SequenceReport report = report_of(request, static_cast<std::uint64_t>(sample));
        if (report.finish_reason != "error") continue;
        ++bad;
        first = std::min(first, std::ssize(report.output_ids));
      }
      if (bad == 1 && first >= from && first < by) return request;
    }
    ADD_FAILURE() << "no seed comes upon the damaged token";
    return {};
  }
  /// Expects that a request of these tokens would find none of them in the cache.
  static void expect_nothing_found(ServingPlay& play, std::vector<std::int32_t> token_ids) {
    const GenerationId id = play.submit(asking(std::move(token_ids), 0));
    play.run();
    EXPECT_EQ(play.answers.at(id).summary->cached_tokens, 0);
  }
  static void expect_error(const Answer& answer, const std::string& what) {
    ASSERT_TRUE(answer.summary);
    for (const auto& [sample, output] : answer.samples) {
      EXPECT_EQ(output.reason, "error");
      EXPECT_NE(output.error.find(what), std::string::npos) << output.error;
    }
  }

  DamagedModel damaged_;
};
class ServingEngineThatSharesADamagedToken : public ServingEngineWithADamagedToken {};

// Answers

TEST_P(ServingEngine, GivesEveryRequestTheAnswerOfItsSoloRunWhateverTheChunks) {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < 14; ++n) requests.push_back(request(1 + n * 5 % 23, 3 + n * 7 % 20, n % 9));
  for (const std::int64_t batch : {8, 9, 13, 64}) {
    ServingPlay play = this->play(64, {.max_batch_tokens = batch, .max_sequences = 8});
    for (const GenerationRequest& each : requests) play.submit(each);
    play.run();
    for (std::size_t n = 0; n < requests.size(); ++n) {
      EXPECT_EQ(play.answers.at(n + 1).ids(), alone(requests[n])) << "request " << n << ", batch " << batch;
      EXPECT_EQ(play.answers.at(n + 1).reason(), "length");
    }
  }
}

// SP4: each request has its own seed.
TEST_P(ServingEngine, DrawsWithTheSeedOfTheRequestWhoeverElseRuns) {
  const GenerationRequest mine = sampled(request(9, 12), 42);
  const std::vector<std::int32_t> expected = alone(mine);
  ServingPlay play = this->play(64);
  std::vector<GenerationId> ids{play.submit(mine)};
  for (std::uint64_t n = 0; n < 5; ++n) play.submit(sampled(request(7, 9, 50), n));
  play.step();
  ids.push_back(play.submit(mine));
  play.run();
  for (const GenerationId id : ids) EXPECT_EQ(play.answers.at(id).ids(), expected);
  EXPECT_NE(play.answers.at(2).ids(), play.answers.at(3).ids());
}

TEST_P(ServingEngine, GivesEachSampleItsOwnSeedAndCountsThePromptOnce) {
  GenerationRequest mine = sampled(request(10, 12), 7);
  mine.samples = 4;
  ServingPlay play = this->play(96);
  play.submit(request(5, 20));
  const GenerationId id = play.submit(mine);
  play.submit(request(6, 20));
  play.run();
  const Answer& answer = play.answers.at(id);
  ASSERT_EQ(answer.samples.size(), 4U);
  for (const auto& [sample, output] : answer.samples)
    EXPECT_EQ(output.ids, alone(mine, static_cast<std::uint64_t>(sample))) << "sample " << sample;
  EXPECT_EQ(answer.summary->prompt_tokens, 10);
  EXPECT_EQ(answer.summary->generated_tokens, 4 * 12);
  if (shares()) {
    EXPECT_EQ(play.cache.manager->counters().copies, 3) << "the last of four writes in place";
  }
  EXPECT_EQ(play.engine.totals().computed_tokens, 5 + 19 + 6 + 19 + 4 * 11 + (shares() ? 10 : 4 * 10));
}

TEST_P(ServingEngine, SaysWhatOfThePromptWasCached) {
  ServingPlay play = this->play(64);
  const GenerationId first = play.submit(request(19, 2));
  play.run();
  const GenerationId second = play.submit(request(19, 2));
  play.run();
  EXPECT_EQ(play.answers.at(first).summary->cached_tokens, 0);
  EXPECT_EQ(play.answers.at(second).summary->cached_tokens, shares() ? 16 : 0);
  EXPECT_EQ(play.answers.at(second).summary->prompt_tokens, 19);
}

TEST_P(ServingEngineThatShares, SharesAmongRequestsOfEqualSaltAlone) {
  ServingPlay play = this->play(64);
  const auto cached = [&](const std::string& salt) {
    GenerationRequest asked = request(19, 2);
    asked.salt = salt;
    asked.samples = 2;
    const GenerationId id = play.submit(asked);
    play.run();
    EXPECT_EQ(play.answers.at(id).ids(), alone(request(19, 2)));
    return play.answers.at(id).summary->cached_tokens;
  };
  EXPECT_EQ(cached("alice"), 0);
  EXPECT_EQ(cached("mallory"), 0);
  EXPECT_EQ(cached(""), 0);
  for (const char* salt : {"alice", "mallory", ""}) EXPECT_EQ(cached(salt), 16);
}

TEST_P(ServingEngineThatShares, SharesInABatchRunAmongRequestsOfEqualSaltAlone) {
  ServingCache cache(GetParam(), 64, 4, model_->config(), threads_);
  std::vector<Request> requests(4, Request{request(19, 2).prompt_ids, 2, false, {}});
  requests[0].salt = requests[3].salt = "alice";
  requests[1].salt = "mallory";
  const Report report = run(*model_, *cache.manager, *cache.store, requests);
  for (std::size_t first = 0; first < 3; ++first) EXPECT_EQ(report.sequences[first].cached_tokens, 0);
  EXPECT_EQ(report.sequences[3].cached_tokens, 16);
}

// Preemption

// SC2, SC8, SC11: nothing is lost, told twice or counted twice when a request is preempted again and again.
TEST_P(ServingEngine, TellsEveryIdOnceHoweverOftenARequestIsPreempted) {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < 8; ++n)
    requests.push_back(n % 2 == 0 ? request(1 + n * 3, 25, n) : sampled(request(1 + n * 3, 25, n), 3));
  for (const std::int64_t every : {1, 2, 5}) {
    ServingPlay play = this->play(160, {.max_batch_tokens = 9, .max_sequences = 8, .preempt_every = every});
    for (const GenerationRequest& each : requests) play.submit(each);
    play.run();
    EXPECT_GT(play.engine.scheduler().preemptions(), 8 / every);
    for (std::size_t n = 0; n < requests.size(); ++n) {
      const Answer& answer = play.answers.at(n + 1);
      EXPECT_EQ(answer.ids(), alone(requests[n])) << "request " << n << ", every " << every;
      EXPECT_EQ(answer.summary->generated_tokens, 25);
    }
    EXPECT_EQ(play.engine.totals().generated_tokens, 8 * 25);
  }
}

// SC4, SC6, SW1: a pool for a few of many; each prompt is unlike all others.
TEST_P(ServingEngineWithBlocks, GivesTheSoloAnswersInAPoolForAFewOfThem) {
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < 12; ++n) requests.push_back(request(5 + n % 4, 30, n * 40));
  for (const std::int64_t blocks : {10, 13, 20}) {
    ServingPlay play = this->play(blocks);
    for (const GenerationRequest& each : requests) play.submit(each);
    play.run();
    EXPECT_GT(play.engine.scheduler().preemptions(), 0);
    if (GetParam() == Kind::tiered) {
      EXPECT_GT(play.cache.manager->counters().swaps_in, 0);
    }
    for (std::size_t n = 0; n < requests.size(); ++n)
      EXPECT_EQ(play.answers.at(n + 1).ids(), alone(requests[n])) << blocks << " blocks, request " << n;
  }
}

// Limits

// SC3, SC12: a request that can never be computed is refused, with a reason, before it takes any memory. A
// request that outgrows the pool ends. The others go on.
TEST_P(ServingEngine, RefusesWhatCanNeverBeComputed) {
  ServingPlay play = this->play(8);
  const auto expect_refusal = [&](const GenerationRequest& refused, const std::string& field,
                                  const std::string& value) {
    try {
      play.submit(refused);
      ADD_FAILURE() << field << " was taken";
    } catch (const InputError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(field)) << error.what();
      EXPECT_NE(std::string(error.what()).find(value), std::string::npos) << error.what();
    }
  };
  expect_refusal(request(33, 1), "prompt_ids", "33");
  expect_refusal(request(0, 1), "prompt_ids", "empty");
  expect_refusal(request(600, 1), "prompt_ids", "512");
  GenerationRequest wrong = request(2, 1);
  wrong.prompt_ids[1] = 768;
  expect_refusal(wrong, "prompt_ids", "768");
  expect_refusal(request(2, -1), "max_tokens", "-1");
  wrong = request(2, 1);
  wrong.samples = 9;
  expect_refusal(wrong, "n ", "8");
  wrong.samples = 0;
  expect_refusal(wrong, "n ", "0");
  wrong = request(2, 1);
  wrong.sampling.temperature = -1;
  expect_refusal(wrong, "temperature", "-1");
  wrong = request(2, 1);
  wrong.stop = {"a", ""};
  expect_refusal(wrong, "stop", "empty");
  wrong.stop = {"\xff"};
  expect_refusal(wrong, "stop", "UTF-8");
  EXPECT_EQ(play.held(), 0);
  EXPECT_FALSE(play.step());
}

TEST_P(ServingEngine, EndsWithCapacityWhatOutgrowsTheCacheAndLetsTheOthersGoOn) {
  ServingPlay play = this->play(8);  // of 32 tokens; so is the one flat reservation
  const GenerationId first = play.submit(request(3, 6));
  const GenerationId large = play.submit(request(30, 200));
  const GenerationId exact = play.submit(request(32, 1));
  const GenerationId last = play.submit(request(2, 6));
  play.run();
  EXPECT_EQ(play.answers.at(large).reason(), "capacity");
  EXPECT_EQ(play.answers.at(large).ids(), alone(request(30, 3)));
  EXPECT_EQ(play.answers.at(exact).ids(), alone(request(32, 1)));
  EXPECT_EQ(play.answers.at(first).ids(), alone(request(3, 6)));
  EXPECT_EQ(play.answers.at(last).ids(), alone(request(2, 6)));
}

TEST_P(ServingEngineThatShares, KeepsAPinnedPrefixAndEndsWhatCanNeverFitBesideIt) {
  ServingPlay play = this->play(12);
  const GenerationRequest prefix = request(22, 0);
  play.engine.pin(prefix.prompt_ids);  // six blocks
  const std::int64_t pinned = play.held();
  EXPECT_EQ(play.cache.manager->block_table(0).size(), 6U) << "under an id that no sequence gets";
  GenerationRequest large = request(30, 3, 90);  // eight
  large.samples = 3;
  EXPECT_THROW(play.engine.check(large), InputError) << "12 blocks hold it, but not beside the six";
  constexpr GenerationId never = 100;  // as if it had not been checked
  play.engine.add(never, large, [&](const GenerationEvent& event) { play.answers[never].hear(event); });
  const GenerationId hit = play.submit(request(25, 4));
  while (play.step()) {
  }
  ASSERT_TRUE(play.answers.at(never).summary) << "two samples wait for a fork that never comes";
  for (const auto& [sample, output] : play.answers.at(never).samples) EXPECT_EQ(output.reason, "capacity");
  EXPECT_EQ(play.answers.at(hit).ids(), alone(request(25, 4)));
  EXPECT_EQ(play.answers.at(hit).summary->cached_tokens, 22);
  EXPECT_EQ(play.held(), pinned);
}

// The second prompt computes its last block for the logits after it, although the prefix holds this block.
// Then the pool has the block twice, and no room for a third sequence that takes the wrong one.
TEST_P(ServingEngineThatShares, SharesThePinnedBlocksAndNotCopiesOfThem) {
  ServingPlay play = this->play(5);
  play.engine.pin(request(13, 0).prompt_ids);  // three full blocks and one that is not
  for (const GenerationRequest& each : {request(13, 2), request(12, 1), request(13, 2), request(12, 1)}) {
    const GenerationId id = play.submit(each);
    while (play.step()) {
    }
    EXPECT_EQ(play.answers.at(id).ids(), alone(each));
  }
}

TEST_P(ServingEngine, EndsAtTheEndOfTheContext) {
  ServingPlay play(GetParam(), 16, *model_, threads_, {.max_batch_tokens = 100, .max_sequences = 2}, nullptr,
                   /*block_size=*/64);
  const GenerationId id = play.submit(request(508, 100));
  const GenerationId full = play.submit(request(511, 100));
  play.run();
  EXPECT_EQ(play.answers.at(id).ids().size(), 4U);
  EXPECT_EQ(play.answers.at(id).reason(), "length");
  EXPECT_EQ(play.answers.at(full).ids().size(), 1U);
}

TEST_P(ServingEngine, ComputesThePromptAloneForZeroTokens) {
  ServingPlay play = this->play(32);
  GenerationRequest none = request(9, 0);
  none.samples = 2;
  const GenerationId id = play.submit(none);
  play.run();
  ASSERT_EQ(play.answers.at(id).samples.size(), 2U);
  for (const auto& [sample, output] : play.answers.at(id).samples) {
    EXPECT_TRUE(output.ids.empty());
    EXPECT_EQ(output.reason, "length");
  }
  EXPECT_EQ(play.answers.at(id).summary->generated_tokens, 0);
}

TEST_P(ServingEngine, EndsAtAnEndOfSequenceIdUnlessItIsToBeIgnored) {
  const std::vector<std::int32_t> ids = alone(request(6, 8));
  const std::int32_t eos = ids[3];
  const auto length = std::ranges::find(ids, eos) - ids.begin() + 1;
  load({eos});
  ServingPlay play = this->play(64);
  const GenerationId stops = play.submit(request(6, 8));
  GenerationRequest goes_on = request(6, 8);
  goes_on.ignore_eos = true;
  const GenerationId ignores = play.submit(goes_on);
  play.run();
  EXPECT_EQ(play.answers.at(stops).ids(), std::vector(ids.begin(), ids.begin() + length));
  EXPECT_EQ(play.answers.at(stops).reason(), "stop");
  EXPECT_EQ(play.answers.at(stops).samples.at(0).text,
            tokenizer_.decode(std::vector(ids.begin(), ids.begin() + length - 1)))
      << "the id of the end has no text";
  EXPECT_EQ(play.answers.at(ignores).ids(), ids);
}

// Preparing

// The next pass is planned before the ids of this pass are known. It runs unless a sequence ends by its id.
TEST_P(ServingEngine, PlansTheNextPassWhileOneIsComputed) {
  const std::vector<std::int32_t> ids = alone(request(6, 8));
  load({ids[3]});
  ServingPlay play = this->play(64);
  std::vector<bool> prepared;  // at each id of the first
  GenerationRequest first = request(6, 9), second = request(6, 8), third = request(6, 6);
  first.ignore_eos = third.ignore_eos = true;
  play.engine.add(100, first,
                  [&](const GenerationEvent&) { prepared.push_back(play.engine.scheduler().prepared()); });
  play.submit(second);
  play.submit(third);
  play.run();
  EXPECT_EQ(prepared, std::vector<bool>({true, true, true, true, true, true, true, true, false}))
      << "with the last id there is nothing more to plan";
  EXPECT_EQ(play.answers.at(1).reason(), "stop");
  EXPECT_EQ(play.engine.totals().passes, 9);
  EXPECT_EQ(play.engine.totals().prepared_passes, 9 - 1 - 1)
      << "all but the first, and the one after the stop; that the third has enough was known before";
}

// Texts

TEST_P(ServingEngine, TellsTheTextOfTheIdsAndNeverAPartOfACharacter) {
  ServingPlay play = this->play(160);
  std::vector<GenerationRequest> requests;
  for (int n = 0; n < 10; ++n) requests.push_back(sampled(request(4, 30), static_cast<std::uint64_t>(n)));
  for (const GenerationRequest& each : requests) play.submit(each);
  play.run();
  for (const auto& [id, answer] : play.answers)
    EXPECT_EQ(answer.samples.at(0).text, tokenizer_.decode(answer.ids()));
}

// If the output ends before a stop string is complete, the string's beginning is part of the text.
TEST_P(ServingEngine, TellsTheTextThatWasHeldBackForAStopStringThatNeverComes) {
  GenerationRequest mine = sampled(request(4, 40), 11);
  const std::string text = tokenizer_.decode(alone(mine));
  for (const std::size_t held : {1UL, 4UL, 9UL}) {
    const std::string end = text.substr(text.size() - held);
    if (find_invalid_utf8(end)) continue;
    ServingPlay play = this->play(64);
    mine.stop = {end + "zzz"};
    const GenerationId id = play.submit(mine);
    play.run();
    EXPECT_EQ(play.answers.at(id).samples.at(0).text, text) << "stop: " << mine.stop[0];
    EXPECT_EQ(play.answers.at(id).reason(), "length");
  }
}

/// The first number of `ids` that ends in the middle of a character; 0: none.
std::size_t first_half_of_a_character(const std::vector<std::int32_t>& ids, const Tokenizer& tokenizer) {
  StreamDecoder decoder(tokenizer);
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    if (decoder.push(ids[count - 1]).find(kReplacement) != std::string::npos) return 0;
    if (tokenizer.decode(std::span(ids).first(count)).ends_with(kReplacement)) return count;
  }
  return 0;
}

// At the end, its unfinished character becomes U+FFFD, here the stop string. It has still ended by its
// cancellation.
TEST_P(ServingEngine, SaysThatARequestWasCancelledWhateverItsLastCharacterBecomes) {
  int cancelled = 0;
  for (std::uint64_t seed = 0; seed < 200 && cancelled < 3; ++seed) {
    GenerationRequest mine = sampled(request(4, 30), seed);
    const std::size_t count = first_half_of_a_character(alone(mine), tokenizer_);
    if (count == 0 || count == 30) continue;
    mine.stop = {kReplacement};
    ServingPlay play = this->play(64);
    const GenerationId id = play.submit(mine);
    while (play.answers[id].samples[0].ids.size() < count) ASSERT_TRUE(play.step());
    play.cancel(id);
    EXPECT_EQ(play.answers.at(id).reason(), "cancelled");
    EXPECT_EQ(play.answers.at(id).samples.at(0).text.find(kReplacement), std::string::npos);
    ++cancelled;
  }
  EXPECT_EQ(cancelled, 3);
}

TEST_P(ServingEngine, EndsAtAStopStringWhereverTokensAreCut) {
  GenerationRequest mine = sampled(request(4, 40), 11);
  const std::vector<std::int32_t> ids = alone(mine);
  const std::string text = tokenizer_.decode(ids);
  for (std::size_t begin = 0; begin + 9 < text.size(); begin += 5) {
    const std::string stop = text.substr(begin, 7);
    if (find_invalid_utf8(stop)) continue;
    ServingPlay play = this->play(64);
    mine.stop = {"never comes", stop};
    const GenerationId id = play.submit(mine);
    play.run();
    const Answer::Output& output = play.answers.at(id).samples.at(0);
    EXPECT_EQ(output.text, text.substr(0, text.find(stop))) << "stop: " << stop;
    EXPECT_EQ(output.reason, "stop");
    EXPECT_TRUE(begins(ids, output.ids));
    EXPECT_EQ(play.answers.at(id).summary->generated_tokens, std::ssize(output.ids));
  }
}

// Going away

// BA6, HT1: a cancelled request frees its memory at once, wherever it is.
TEST_P(ServingEngine, FreesAtOnceWhatACancelledRequestHeldWhereverItIs) {
  const SchedulerSettings settings{.max_batch_tokens = 8, .max_sequences = 4};
  for (std::int64_t steps = 0; steps < 12; ++steps) {
    ServingPlay play = this->play(64, settings);
    const GenerationId first = play.submit(request(5, 10));
    const GenerationId second = play.submit(sampled(request(40, 10, 90), 1));
    GenerationRequest forks = sampled(request(6, 10), 1);
    forks.samples = 2;
    const GenerationId third = play.submit(forks);
    for (std::int64_t n = 0; n < steps; ++n) play.step();
    for (const GenerationId id : {third, second}) {
      play.cancel(id);
      play.cancel(id);  // harmless
      for (const auto& [sample, output] : play.answers.at(id).samples)
        EXPECT_TRUE(output.reason == "cancelled" || output.reason == "length");
      EXPECT_TRUE(play.answers.at(id).summary);
    }
    if (steps < 10) {
      EXPECT_LE(play.held(), (5 + steps) * model_->config().kv_bytes_per_token(4));
    }
    play.run();
    EXPECT_EQ(play.answers.at(first).ids(), alone(request(5, 10)));
  }
}

TEST_P(ServingEngineWithBlocks, ForgetsARequestThatIsCancelledAfterItWasPreempted) {
  ServingPlay play = this->play(10);
  const GenerationId first = play.submit(request(5, 30));
  const GenerationId second = play.submit(request(17, 20, 100));
  while (play.engine.scheduler().preemptions() == 0) play.step();
  const std::int64_t held = play.held();
  play.cancel(second);
  EXPECT_EQ(play.held(), held);
  EXPECT_TRUE(play.engine.scheduler().waiting().empty());
  play.run();
  EXPECT_EQ(play.answers.at(first).ids(), alone(request(5, 30)));
  EXPECT_EQ(play.answers.at(second).reason(), "cancelled");
  EXPECT_TRUE(begins(alone(request(17, 20, 100)), play.answers.at(second).ids()));
}

// CW1: one of several samples that share blocks ends early.
TEST_P(ServingEngine, LetsSamplesEndAtDifferentTimes) {
  GenerationRequest mine = sampled(request(6, 30), 3);
  mine.samples = 4;
  std::vector<std::int32_t> eos;  // an id that the second sample says fifth
  eos.push_back(alone(mine, 1)[4]);
  load(eos);
  ServingPlay play = this->play(96);
  const GenerationId id = play.submit(mine);
  play.run();
  for (const auto& [sample, output] : play.answers.at(id).samples)
    EXPECT_EQ(output.ids, alone(mine, static_cast<std::uint64_t>(sample))) << "sample " << sample;
  EXPECT_LE(play.answers.at(id).samples.at(1).ids.size(), 5U);
}

// Logits that are not finite

TEST_P(ServingEngineWithADamagedToken, EndsTheRequestsWhoseLogitsAreNotFiniteAndNoOther) {
  const auto several = [](std::vector<std::int32_t> prompt_ids, std::int64_t samples) {
    GenerationRequest request = asking(std::move(prompt_ids), 5);
    request.samples = samples;
    return request;
  };
  const std::vector<GenerationRequest> bad{
      asking({1, 2, DamagedModel::kBadToken}, 3),
      asking(bad_prompt(30, 2), 9),      // in chunks: the first are findable before any logits are seen
      asking(bad_prompt(30, 29, 1), 1),  // ends with the pass, so its memory has gone back by then
      asking(bad_prompt(12, 5, 2), 0),
      several(bad_prompt(11, 6, 3), 3),
      several(bad_prompt(8, 7, 4), 2)};
  for (const std::int64_t batch : {8, 64}) {
    ServingPlay play = this->play(96, {.max_batch_tokens = batch, .max_sequences = 8});
    std::map<GenerationId, GenerationRequest> good, failing;
    for (std::int64_t round = 0; round < 3; ++round) {
      for (std::int64_t n = 0; n < std::ssize(bad); ++n) {
        const GenerationRequest neighbour = asking(good_prompt(3 + n * 4, 10 + n), 12);
        good[play.submit(neighbour)] = neighbour;
        failing[play.submit(bad[static_cast<std::size_t>(n)])] = bad[static_cast<std::size_t>(n)];
      }
      for (int passes = 0; passes < 4; ++passes) play.step();
    }
    play.run();
    for (const auto& [id, request] : good) {
      EXPECT_EQ(play.answers.at(id).ids(), alone(request)) << "request " << id << ", batch " << batch;
      EXPECT_EQ(play.answers.at(id).reason(), "length");
    }
    for (const auto& [id, request] : failing) {
      const Answer& answer = play.answers.at(id);
      expect_error(answer, "logit 0 is NaN");
      EXPECT_EQ(std::ssize(answer.samples), request.samples);
      EXPECT_EQ(answer.summary->generated_tokens, 0);
    }
    EXPECT_EQ(play.engine.totals().requests, std::ssize(good) + std::ssize(failing));
    for (const GenerationRequest& request : bad) expect_nothing_found(play, request.prompt_ids);
  }
}

TEST_P(ServingEngineWithADamagedToken, EndsARequestThatComesUponTheTokenInTheMiddle) {
  const GenerationRequest request = going_bad(20, 59);
  const std::vector<std::int32_t> told = report_of(request).output_ids;
  std::vector<std::int32_t> all = request.prompt_ids;
  all.insert(all.end(), told.begin(), told.end());
  for (const std::int64_t every : {0, 3}) {  // preempted, and in a small pool swapped out
    ServingPlay play = this->play(GetParam() == Kind::flat ? 96 : 30,
                                  {.max_batch_tokens = 9, .max_sequences = 4, .preempt_every = every});
    const GenerationRequest neighbour = asking(good_prompt(13, 3), 50);
    const GenerationId before = play.submit(neighbour), id = play.submit(request),
                       after = play.submit(neighbour);
    play.run();
    expect_error(play.answers.at(id), "logit 0 is NaN");
    EXPECT_EQ(play.answers.at(id).ids(), told) << "what was told before stays told";
    for (const GenerationId neighbours : {before, after})
      EXPECT_EQ(play.answers.at(neighbours).ids(), alone(neighbour));
    expect_nothing_found(play, all);
  }
}

TEST_P(ServingEngineWithADamagedToken, EndsAllSamplesOfARequestOfWhichOneComesUponIt) {
  const GenerationRequest request = going_bad(5, 40, 3);
  ServingPlay play = this->play(96);
  const GenerationRequest neighbour = asking(good_prompt(13, 3), 50);
  const GenerationId id = play.submit(request), other = play.submit(neighbour);
  play.run();
  const Answer& answer = play.answers.at(id);
  EXPECT_EQ(answer.samples.size(), 3U);
  expect_error(answer, "logit 0 is NaN");
  for (const auto& [sample, output] : answer.samples)
    EXPECT_TRUE(begins(report_of(request, static_cast<std::uint64_t>(sample)).output_ids, output.ids));
  EXPECT_EQ(play.answers.at(other).ids(), alone(neighbour));
  expect_nothing_found(play, request.prompt_ids);
}

TEST_P(ServingEngineWithADamagedToken, DropsThePlanThatWouldShareWhatIsForgotten) {
  for (const std::int64_t tokens : {1, 5}) {
    ServingPlay play = this->play(64, {.max_batch_tokens = 40, .max_sequences = 4});
    const GenerationId bad = play.submit(asking(bad_prompt(39, 38), tokens));
    // No row is left for it, so the plan that is made during the first pass admits it.
    std::vector<std::int32_t> begins_alike = good_prompt(38);
    begins_alike.push_back(77);
    const GenerationId good = play.submit(asking(begins_alike, 6));
    EXPECT_TRUE(play.step());
    EXPECT_EQ(play.answers.at(bad).reason(), "error");
    EXPECT_FALSE(play.engine.scheduler().prepared());
    play.run();
    EXPECT_EQ(play.answers.at(good).ids(), alone(asking(begins_alike, 6)));
    EXPECT_EQ(play.answers.at(good).summary->cached_tokens, 0);
  }
}

TEST_P(ServingEngineWithADamagedToken, EndsARequestWhoseLogitsAreInfinite) {
  // One number of the head: for some prompts the logit is beyond the largest or the smallest float.
  damaged_.set("lm_head.weight", 700, 3e38F, 1);
  model_ = loaded_model(damaged_.path(), threads_, DType::f32, std::vector<std::int32_t>{});
  ServingPlay play = this->play(96);
  std::map<GenerationId, SequenceReport> expected;
  std::map<std::string, int> reasons;
  for (std::int64_t kind = 0; kind < 24; ++kind) {
    const GenerationRequest request = asking(good_prompt(3 + kind % 5, kind), 4);
    const SequenceReport report = report_of(request);
    ++reasons[report.finish_reason];
    expected[play.submit(request)] = report;
  }
  play.run();
  EXPECT_GT(reasons["error"], 3);
  EXPECT_GT(reasons["length"], 3);
  for (const auto& [id, report] : expected) {
    EXPECT_EQ(play.answers.at(id).reason(), report.finish_reason);
    EXPECT_EQ(play.answers.at(id).ids(), report.output_ids);
    if (report.finish_reason == "error") expect_error(play.answers.at(id), "logit 700 is +infinity");
  }
}

TEST_P(ServingEngineThatSharesADamagedToken, RefusesToPinAPrefixWithIt) {
  ServingPlay play = this->play(64);
  const std::vector<std::int32_t> prefix = bad_prompt(11, 4);
  try {
    play.engine.pin(prefix);
    FAIL() << "it was pinned";
  } catch (const RunError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("the system prompt: logit 0 is NaN")) << error.what();
  }
  EXPECT_EQ(play.held(), 0);
  play.check();
  expect_nothing_found(play, prefix);
}

// All of it at random

// BA7: thousands of operations. No event is lost, and every answer is that of the solo run.
TEST_P(ServingEngine, LosesNothingInThousandsOfRandomOperations) {
  std::vector<std::vector<std::int32_t>> right;
  std::vector<GenerationRequest> prompts;
  for (int n = 0; n < 10; ++n) {
    // Some prompts begin alike.
    GenerationRequest prompt = request(1 + n * 13 % 30, 24, n % 3);
    right.push_back(alone(prompt));
    prompts.push_back(std::move(prompt));
  }
  for (const std::int64_t blocks : {8, 14, 40}) {
    std::mt19937 random(static_cast<std::uint32_t>(blocks));
    const auto below = [&](std::size_t bound) { return random() % bound; };
    ServingPlay play = this->play(blocks, {.max_batch_tokens = 7, .max_sequences = 5});
    std::map<GenerationId, std::size_t> asked;  // which prompt
    std::vector<GenerationId> open;
    for (int operation = 0; operation < 3000 && !HasFailure(); ++operation) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks, operation " << operation);
      const std::size_t choice = below(20);
      if (choice < 4 && open.size() < 12) {
        const std::size_t number = below(prompts.size());
        GenerationRequest each = prompts[number];
        each.max_tokens = static_cast<std::int64_t>(below(25));
        each.samples = 1 + static_cast<std::int64_t>(below(4) == 0 ? below(3) : 0);
        if (std::ssize(each.prompt_ids) > play.cache.manager->capacity()) continue;
        open.push_back(play.submit(each));
        asked[open.back()] = number;
      } else if (choice == 4 && !open.empty()) {
        play.cancel(open[below(open.size())]);
      } else {
        play.step();
      }
      std::erase_if(open, [&](GenerationId id) { return play.answers[id].summary.has_value(); });
    }
    play.run();
    std::map<std::string, int> reasons;
    for (const auto& [id, number] : asked) {
      const Answer& answer = play.answers.at(id);
      ASSERT_TRUE(answer.summary) << "request " << id << " was lost";
      std::int64_t told = 0;
      for (const auto& [sample, output] : answer.samples) {
        ++reasons[output.reason];
        told += std::ssize(output.ids);
        EXPECT_TRUE(begins(right[number], output.ids)) << "request " << id << ", sample " << sample;
      }
      EXPECT_EQ(answer.summary->generated_tokens, told);
    }
    EXPECT_GT(reasons["length"], 100);
    EXPECT_GT(reasons["cancelled"], 20);
    EXPECT_EQ(reasons["length"] + reasons["cancelled"] + reasons["capacity"],
              std::accumulate(reasons.begin(), reasons.end(), 0,
                              [](int sum, const auto& reason) { return sum + reason.second; }));
    if (GetParam() != Kind::flat && blocks < 20) {
      EXPECT_GT(play.engine.scheduler().preemptions(), 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, ServingEngine, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Steps, ServingEngineWithADamagedToken, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Steps, ServingEngineThatSharesADamagedToken,
                         testing::Values(Kind::sharing, Kind::tiered),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Steps, ServingEngineThatShares, testing::Values(Kind::sharing, Kind::tiered),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Steps, ServingEngineWithBlocks,
                         testing::Values(Kind::paged, Kind::sharing, Kind::tiered),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kvcache
