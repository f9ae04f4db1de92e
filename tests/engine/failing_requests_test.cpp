// Requests that fail alone, by their text or their memory: each ends with "error" and gives back its memory,
// and its neighbours get the answers of their solo runs. And the memory of a waiting request. No test waits
// for a time: allocations are counted, and made to fail, by their number or their size.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "common/engine/engine.h"
#include "tests/support/files.h"
#include "tests/support/serving.h"

namespace {

/// The memory of this thread, counted while a test watches.
struct Allocations {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::int64_t bytes = 0;             // allocated, less what was freed
  std::size_t fails_in = kNone;       // allocations; the one that fails is the last that does
  std::size_t fails_at_size = kNone;  // bytes
  int failed = 0;
};
thread_local Allocations allocations;

constexpr std::size_t kHeader = alignof(std::max_align_t);

}  // namespace

// Not inlined: a compiler that inlines them takes the header before the memory for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  Allocations& now = allocations;
  const bool fails = now.fails_in == 0 || size == now.fails_at_size;
  if (now.fails_in != Allocations::kNone) now.fails_in = fails ? Allocations::kNone : now.fails_in - 1;
  void* const memory = fails ? nullptr : std::malloc(kHeader + size);
  if (memory == nullptr) {
    ++now.failed;
    throw std::bad_alloc();
  }
  now.bytes += static_cast<std::int64_t>(size);
  *static_cast<std::size_t*>(memory) = size;
  return static_cast<char*>(memory) + kHeader;
}
// The library and the address sanitizer have operators of their own; their memory would come back to ours.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  void* const block = static_cast<char*>(memory) - kHeader;
  allocations.bytes -= static_cast<std::int64_t>(*static_cast<std::size_t*>(block));
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace kvcache {
namespace {

using Json = nlohmann::json;

GenerationRequest request_of(std::int64_t length, std::int64_t tokens, std::int32_t first = 5) {
  GenerationRequest result;
  for (std::int64_t n = 0; n < length; ++n)
    result.prompt_ids.push_back(static_cast<std::int32_t>(first + n * 31) % 700);
  result.max_tokens = tokens;
  return result;
}

const Json kReplace = {
    {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(500, 'b')}};
const Json kFuseAndReplace = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, kReplace}}};

/// A tokenizer whose decoder makes more text of one token than any real decoder.
Tokenizer tokenizer_that_fails_at(std::int32_t bad, const Json& decoder) {
  Json vocab;
  for (std::int32_t id = 0; id < 768; ++id)
    vocab[id == bad ? std::string(400, 'a') : "[" + std::to_string(id) + "]"] = id;
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json")
      << Json{{"model", {{"vocab", vocab}, {"merges", Json::array()}}}, {"decoder", decoder}};
  return Tokenizer(folder.path());
}

class FailingRequests : public testing::TestWithParam<Kind> {
 protected:
  ServingPlay play(std::int64_t blocks, const Tokenizer* tokenizer, std::int64_t rows = 16) {
    return ServingPlay(GetParam(), blocks, *model_, threads_, {.max_batch_tokens = rows, .max_sequences = 8},
                       tokenizer);
  }
  bool shares() const { return GetParam() == Kind::sharing || GetParam() == Kind::tiered; }

  std::vector<std::int32_t> alone(const GenerationRequest& asked, std::uint64_t sample = 0) {
    ServingCache cache(Kind::paged, 200, 4, model_->config(), threads_);
    Request request{asked.prompt_ids, asked.max_tokens, asked.ignore_eos, asked.sampling};
    request.sampling.seed += sample;
    return run(*model_, *cache.manager, *cache.store, {&request, 1}).sequences[0].output_ids;
  }
  /// An id in the first request's output that is not in the second's.
  static std::size_t place_of_own(const std::vector<std::int32_t>& mine,
                                  const std::vector<std::int32_t>& others, std::size_t from) {
    for (std::size_t n = from; n < mine.size(); ++n) {
      const auto is_mine = [&](std::int32_t id) { return id == mine[n]; };
      if (std::ranges::none_of(others, is_mine) &&
          std::find(mine.begin(), mine.end(), mine[n]) == mine.begin() + static_cast<std::ptrdiff_t>(n))
        return n;
    }
    ADD_FAILURE() << "the outputs have the same ids";
    return 0;
  }
  static void expect_answer(const Answer& answer, const std::vector<std::int32_t>& ids,
                            const Tokenizer& tokenizer) {
    EXPECT_EQ(answer.ids(), ids);
    EXPECT_EQ(answer.reason(), "length");
    EXPECT_EQ(answer.samples.at(0).text, tokenizer.decode(ids));
  }
  static void expect_error(const Answer& answer, std::int64_t samples, const std::string& message) {
    ASSERT_TRUE(answer.summary);
    EXPECT_EQ(std::ssize(answer.samples), samples);
    std::int64_t told = 0;
    for (const auto& [number, output] : answer.samples) {
      EXPECT_EQ(output.reason, "error") << "sample " << number;
      EXPECT_NE(output.error.find(message), std::string::npos) << output.error;
      told += std::ssize(output.ids);
    }
    EXPECT_EQ(answer.summary->generated_tokens, told);
  }

  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_ =
      reference_model("llama-mha", threads_, DType::f32, std::vector<std::int32_t>{});
  const std::string decoder_ = "tokenizer.json's decoder fails at ";
};

TEST_P(FailingRequests, EndAloneWhereADecoderFailsAtAToken) {
  GenerationRequest bad = request_of(9, 24);
  bad.sampling = {.temperature = 1.5, .seed = 3};
  const GenerationRequest good = request_of(11, 30, 90);
  const std::vector<std::int32_t> ids = alone(bad), expected = alone(good);
  const std::size_t place = place_of_own(ids, expected, 4);
  const Tokenizer tokenizer = tokenizer_that_fails_at(ids[place], kReplace);
  ServingPlay play = this->play(64, &tokenizer);
  const GenerationId before = play.submit(good), fails = play.submit(bad), after = play.submit(good);
  play.run();
  const std::span<const std::int32_t> told(ids.data(), place);
  const Answer& answer = play.answers.at(fails);
  expect_error(answer, 1, decoder_ + "token " + std::to_string(ids[place]) + ": ");
  EXPECT_EQ(answer.ids(), std::vector<std::int32_t>(told.begin(), told.end()));
  EXPECT_EQ(answer.samples.at(0).text, tokenizer.decode(told));
  for (const GenerationId id : {before, after}) expect_answer(play.answers.at(id), expected, tokenizer);
  EXPECT_EQ(play.engine.totals().requests, 3);
}

TEST_P(FailingRequests, EndAloneWhereADecoderFailsAtTheEndOfAText) {
  const GenerationRequest bad = request_of(9, 24), good = request_of(11, 30, 90);
  const std::vector<std::int32_t> ids = alone(bad), expected = alone(good);
  const Tokenizer tokenizer = tokenizer_that_fails_at(ids[place_of_own(ids, expected, 0)], kFuseAndReplace);
  ServingPlay play = this->play(64, &tokenizer);
  const GenerationId before = play.submit(good), fails = play.submit(bad), after = play.submit(good);
  play.run();
  expect_error(play.answers.at(fails), 1, decoder_ + "the end of the text: ");
  EXPECT_EQ(play.answers.at(fails).ids(), ids) << "the last is told too";
  for (const GenerationId id : {before, after}) expect_answer(play.answers.at(id), expected, tokenizer);
}

TEST_P(FailingRequests, EndWithAllTheirSamples) {
  GenerationRequest bad = request_of(9, 40);
  bad.sampling = {.temperature = 1.5, .seed = 3};
  bad.samples = 3;
  const GenerationRequest good = request_of(11, 50, 90);
  const std::vector<std::int32_t> expected = alone(good);
  std::vector<std::int32_t> others = expected;
  for (const std::uint64_t sample : {0U, 2U}) {
    const std::vector<std::int32_t> other = alone(bad, sample);
    others.insert(others.end(), other.begin(), other.end());
  }
  const std::vector<std::int32_t> ids = alone(bad, 1);
  const std::size_t place = place_of_own(ids, others, 4);
  const Tokenizer tokenizer = tokenizer_that_fails_at(ids[place], kReplace);
  ServingPlay play = this->play(96, &tokenizer);
  const GenerationId fails = play.submit(bad), neighbour = play.submit(good);
  play.run();
  expect_error(play.answers.at(fails), 3, decoder_ + "token ");
  EXPECT_EQ(play.answers.at(fails).samples.at(1).ids.size(), place);
  expect_answer(play.answers.at(neighbour), expected, tokenizer);
}

TEST_P(FailingRequests, EndAloneWhenTheyAreCancelled) {
  GenerationRequest bad = request_of(9, 24);
  const GenerationRequest good = request_of(11, 30, 90);
  const std::vector<std::int32_t> ids = alone(bad), expected = alone(good);
  const std::size_t place = place_of_own(ids, expected, 0);
  const Tokenizer tokenizer = tokenizer_that_fails_at(ids[place], kFuseAndReplace);
  for (const std::int64_t samples : {1, 2}) {
    bad.samples = samples;
    ServingPlay play = this->play(96, &tokenizer);
    const GenerationId fails = play.submit(bad), neighbour = play.submit(good);
    while (play.answers[fails].samples[0].ids.size() <= place) play.step();
    play.cancel(fails);
    expect_error(play.answers.at(fails), samples, decoder_ + "the end of the text: ");
    play.run();
    expect_answer(play.answers.at(neighbour), expected, tokenizer);
  }
}

TEST_P(FailingRequests, EndAloneWhenTheyOutgrowTheMemory) {
  const GenerationRequest bad = request_of(9, 60), good = request_of(11, 12, 90);
  const std::vector<std::int32_t> ids = alone(bad), expected = alone(good);
  const std::size_t place = place_of_own(ids, expected, 0);
  ASSERT_LT(place, 20U);
  const Tokenizer tokenizer = tokenizer_that_fails_at(ids[place], kFuseAndReplace);
  ServingPlay play = this->play(GetParam() == Kind::flat ? 16 : 10, &tokenizer);  // 64 or 40 tokens
  const GenerationId fails = play.submit(bad), neighbour = play.submit(good);
  play.run();
  expect_error(play.answers.at(fails), 1, decoder_ + "the end of the text: ");
  EXPECT_LT(play.answers.at(fails).ids().size(), 60U);
  expect_answer(play.answers.at(neighbour), expected, tokenizer);
}

TEST_P(FailingRequests, EndAtOnceWhereThereIsNoMemoryToTakeThem) {
  GenerationRequest asked = request_of(40, 6);
  asked.samples = 3;
  asked.stop = {std::string(50, 'x'), std::string(60, 'y')};
  asked.salt = std::string(40, 's');
  const GenerationRequest good = request_of(11, 12, 90);
  const std::vector<std::int32_t> expected = alone(good), answer = alone(asked);
  const Tokenizer tokenizer = tokenizer_that_fails_at(-1, kReplace);
  ServingPlay play = this->play(96, &tokenizer);
  GenerationId id = 1000;
  for (std::size_t number = 0;; ++number) {
    GenerationRequest mine = asked;
    OnGenerationEvent listener = [&play, key = ++id](const GenerationEvent& event) {
      play.answers[key].hear(event);
    };
    allocations = {.bytes = allocations.bytes, .fails_in = number};
    play.engine.add(id, std::move(mine), std::move(listener));
    allocations.fails_in = Allocations::kNone;
    play.check();
    if (allocations.failed == 0) break;
    expect_error(play.answers.at(id), 3, "out of memory");
    ASSERT_LT(number, 100U);
  }
  EXPECT_GT(id, 1003U) << "several allocations were made to fail";
  const GenerationId neighbour = play.submit(good);
  play.run();
  EXPECT_EQ(play.answers.at(id).ids(), answer);
  expect_answer(play.answers.at(neighbour), expected, tokenizer);
}

TEST_P(FailingRequests, EndAloneWhereThereIsNoMemoryForTheirIds) {
  constexpr std::int64_t kPrompt = 37;  // no other list has that many numbers, or twice as many
  const GenerationRequest good = request_of(11, 12, 90);
  const std::vector<std::int32_t> expected = alone(good);
  for (const std::int64_t samples : {1, 3}) {
    GenerationRequest bad = request_of(kPrompt, 6);
    bad.samples = samples;
    ServingPlay play = this->play(96, nullptr);
    const GenerationId before = play.submit(good), fails = play.submit(bad), after = play.submit(good);
    allocations = {.bytes = allocations.bytes,
                   .fails_at_size = static_cast<std::size_t>(2 * kPrompt) * sizeof(std::int32_t)};
    play.run();
    allocations.fails_at_size = Allocations::kNone;
    EXPECT_GE(allocations.failed, 1);
    expect_error(play.answers.at(fails), samples, "out of memory");
    EXPECT_EQ(play.answers.at(fails).summary->generated_tokens, 0);
    for (const GenerationId id : {before, after}) {
      EXPECT_EQ(play.answers.at(id).ids(), expected);
      EXPECT_EQ(play.answers.at(id).reason(), "length");
    }
  }
}

// What a request costs while it waits

/// Bytes that a request takes until it runs, without the bytes that it came with.
std::int64_t bytes_added(ServingPlay& play, GenerationRequest asked) {
  const std::int64_t before = allocations.bytes;
  play.engine.add(1, std::move(asked), [](const GenerationEvent&) {});
  const std::int64_t after = allocations.bytes;
  play.engine.cancel(1);
  return after - before;
}

TEST_P(FailingRequests, WaitWithOneCopyOfWhatWasSentHoweverManySamplesTheyHave) {
  const Tokenizer tokenizer = tokenizer_that_fails_at(-1, kReplace);
  ServingPlay play = this->play(128, &tokenizer);
  bytes_added(play, request_of(3, 3));  // the engine's own lists grow once
  for (const std::int64_t samples : {1, 8}) {
    GenerationRequest small = request_of(30, 6);
    small.samples = samples;
    small.salt = std::string(100, 's');
    small.stop = {std::string(100, 'x')};
    GenerationRequest large = small;
    large.prompt_ids = request_of(230, 6).prompt_ids;
    large.salt = std::string(250, 's');
    large.stop = std::vector<std::string>(16, std::string(1000, 'x'));
    EXPECT_EQ(bytes_added(play, large), bytes_added(play, small)) << samples << " samples";
  }
}

TEST_P(FailingRequests, ShareTheIdsOfThePromptUntilTheyRun) {
  GenerationRequest asked = request_of(30, 6);
  asked.samples = 8;
  ServingPlay play = this->play(128, nullptr);
  const GenerationId id = play.submit(asked);
  std::set<const std::int32_t*> lists;
  for (const ScheduledSequence* sequence : play.engine.scheduler().waiting())
    lists.insert(sequence->token_ids.begin());
  EXPECT_EQ(play.engine.scheduler().waiting().size(), shares() ? 1U : 8U);
  EXPECT_EQ(lists.size(), 1U);
  play.run();
  for (const auto& [number, output] : play.answers.at(id).samples) EXPECT_EQ(output.ids, alone(asked));
}

INSTANTIATE_TEST_SUITE_P(Steps, FailingRequests, testing::ValuesIn(kAllKinds),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kvcache
