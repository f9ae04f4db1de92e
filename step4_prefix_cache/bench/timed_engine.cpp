/// @file
/// See timed_engine.h.
#include "step4_prefix_cache/bench/timed_engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "common/base/error.h"
#include "common/bench/statistics.h"
#include "common/cli/device.h"
#include "common/engine/engine.h"
#include "fmt/format.h"
#include "step4_prefix_cache/make_cache.h"

namespace kvcache {
namespace {

using Clock = Engine::Clock;

constexpr std::int64_t kTokensOnCpu = 8192, kTokensOnGpu = 131'072;  // of K and V that the timed passes need
constexpr std::int64_t kMostPrompt = 32'768, kLeastOutputs = 24;     // of a timed request
constexpr std::int64_t kSequencesOnCpu[] = {1, 2, 4, 8, 16};         // at a time
constexpr std::int64_t kSequencesOnGpu[] = {1, 4, 16, 64};
constexpr std::int64_t kPartsOfRows[] = {1, 4};  // of the most rows of a pass
constexpr std::int64_t kRounds = 4;  // the first is not timed: buffers grow, and a GPU records its passes

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A store that notes what each pass has to do.
class NotingStore final : public KvStore {
 public:
  explicit NotingStore(KvStore& store) : store_(store) {}

  void begin(const PassPlan& plan) override {
    work_ = work_of(plan);
    store_.begin(plan);
  }
  std::vector<std::int64_t> launch_key() const override { return store_.launch_key(); }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override {
    store_.store_and_attend(layer, heads, rows, out);
  }
  void end() override { store_.end(); }

  /// Of the pass that began last.
  const PassWork& work() const { return work_; }

 private:
  KvStore& store_;
  PassWork work_;
};

/// An engine with an empty cache of step 4.
struct TimedEngine {
  TimedEngine(Program& program, const SchedulerSettings& settings)
      : cache(make_prefix_cache(program)),
        store(*cache.store),
        engine(*program.model, *cache.manager, store, /*tokenizer=*/nullptr, settings) {}

  Cache cache;
  NotingStore store;
  Engine engine;
};

GenerationRequest request_of(std::vector<std::int32_t> prompt_ids, std::int64_t outputs) {
  GenerationRequest request;
  request.prompt_ids = std::move(prompt_ids);
  request.max_tokens = outputs;
  request.ignore_eos = true;
  return request;
}

/// @throws RunError with what an engine said of a request that failed, if there is one.
void refuse_failure(const std::string& error) {
  if (!error.empty()) throw RunError(error);
}

/// Requests that come at once.
struct Batch {
  std::vector<std::int64_t> prompts;  ///< tokens of each
  std::int64_t outputs = 0;           ///< of each
};

/// `count` requests with prompts of one length to many. Each decodes until the prompts of all are computed,
/// in passes of at most `rows` rows, and on beside the others, as far as `tokens` of K and V allow it.
Batch batch_of(const ModelConfig& model, std::int64_t count, std::int64_t rows, std::int64_t tokens) {
  const std::int64_t half = model.max_position_embeddings / 2;
  const std::int64_t longest = std::min({half, kMostPrompt, tokens / count - kLeastOutputs});
  Batch batch;
  for (std::int64_t n = 1; n <= count; ++n)
    batch.prompts.push_back(std::max<std::int64_t>(1, longest * n / count));
  const std::int64_t prompts = std::accumulate(batch.prompts.begin(), batch.prompts.end(), std::int64_t{0});
  const std::int64_t passes_of_prompts = prompts / std::max<std::int64_t>(1, rows - count);
  const std::int64_t outputs =
      std::min({kLeastOutputs + passes_of_prompts, (tokens - prompts) / count, half});
  batch.outputs = std::max<std::int64_t>(1, outputs);
  return batch;
}

/// Times the passes of a batch of `count` requests (batch_of). The same passes run again and again, with
/// other prompts; a pass counts with its median.
/// @throws RunError if a pass fails.
void time_passes(Program& program, std::int64_t count, std::int64_t rows, std::int64_t tokens,
                 std::vector<TimedPass>& passes) {
  const Batch batch = batch_of(program.model->config(), count, rows, tokens);
  const auto vocabulary = static_cast<std::uint64_t>(program.model->config().vocab_size);
  TimedEngine timed(program, {.max_batch_tokens = rows, .max_sequences = count});
  std::mt19937 random(static_cast<std::uint32_t>(count * rows));
  GenerationId last_id = 0;
  std::string error;
  std::vector<PassWork> works;
  std::vector<std::vector<double>> times;  // [passes, timed rounds] ms
  for (std::int64_t round = 0; round < kRounds; ++round) {
    for (const std::int64_t length : batch.prompts) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % vocabulary);
      GenerationRequest request = request_of(std::move(ids), batch.outputs);
      request.salt = std::to_string(round);  // so that it finds nothing of the rounds before
      timed.engine.add(++last_id, std::move(request),
                       [&](const GenerationEvent& event) { error += event.error; });
    }
    for (std::size_t pass = 0;; ++pass) {
      const Clock::time_point begin = Clock::now();
      if (!timed.engine.run_pass()) break;
      const double ms = ms_since(begin);
      refuse_failure(error);
      if (round == 0) {
        works.push_back(timed.store.work());
        times.emplace_back();
      } else if (pass < works.size() && timed.store.work() == works[pass]) {
        times[pass].push_back(ms);  // in a small vocabulary prompts may begin alike
      }
    }
  }
  for (std::size_t pass = 0; pass < works.size(); ++pass) {
    if (!times[pass].empty()) passes.push_back({works[pass], median(times[pass])});
  }
}

/// Tokens of K and V for the timed passes on a GPU: kTokensOnGpu, or less on one with little memory.
/// @param spare  blocks beside them
std::int64_t tokens_on_gpu(const Program& program, std::int64_t spare) {
  const std::int64_t bytes = program.model->config().kv_bytes_per_token(size_of(program.dtype));
  const std::int64_t room = free_memory(*program.gpu) / 2 / bytes - spare * program.options.block_size;
  return std::clamp<std::int64_t>(room, 1, kTokensOnGpu);
}

/// The ids of a prompt in a vocabulary. Any kLeastBlock ids of a block tell its number: they are its digits,
/// in the base of the vocabulary, each behind the other.
std::vector<std::int32_t> ids_in_vocabulary(const TokenIds& prompt, std::int64_t block_size,
                                            std::int64_t vocab_size) {
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const std::int64_t number = ids[n], place = static_cast<std::int64_t>(n) % block_size;
    // The digits of the block's number, the lowest first, repeated.
    std::int64_t digit = number;
    for (std::int64_t skip = place % kLeastBlock; skip > 0; --skip) digit /= vocab_size;
    ids[n] = static_cast<std::int32_t>((digit + place / kLeastBlock) % vocab_size);
  }
  return ids;
}

/// Refuses a request that the model or the pool cannot hold to its end.
/// @param trace  its name
void check_lengths(const Traffic& traffic, const std::string& trace, const ModelConfig& model,
                   std::int64_t capacity) {
  for (const TrafficRequest& asked : traffic.requests) {
    const bool fits_the_model = asked.input_length + asked.output_length <= model.max_position_embeddings;
    if (fits_the_model && asked.tokens_to_store() <= capacity) continue;
    throw InputError(
        fmt::format("{}, line {}: the request has {} tokens in and {} out, and {}; give shorter ones", trace,
                    asked.line, asked.input_length, asked.output_length,
                    fits_the_model ? fmt::format("the pool holds {}", capacity) : model.context_sentence()));
  }
}

}  // namespace

std::vector<TimedPass> timed_passes(Program& program, std::int64_t rows) {
  const std::span<const std::int64_t> counts =
      program.gpu ? std::span<const std::int64_t>(kSequencesOnGpu) : kSequencesOnCpu;
  const std::int64_t partial = counts.back();  // blocks, the last one of each sequence
  const std::int64_t tokens = program.gpu ? tokens_on_gpu(program, partial) : kTokensOnCpu;
  // The watermark comes on top.
  program.options.num_blocks = (tokens + tokens / 8) / program.options.block_size + partial;
  std::vector<TimedPass> passes;
  for (const std::int64_t count : counts) {
    for (const std::int64_t part : kPartsOfRows) {
      if (2 * count > rows / part) continue;  // prompts would hardly come forward beside the outputs
      fmt::print(stderr, "timing {} requests at a time in passes of {} rows\n", count, rows / part);
      time_passes(program, count, rows / part, tokens, passes);
    }
  }
  return passes;
}

ServedTraffic serve_traffic(Program& program, const Traffic& traffic, const std::string& trace,
                            const SchedulerSettings& settings) {
  const ModelConfig& model = program.model->config();
  check_lengths(traffic, trace, model, program.options.num_blocks.value() * program.options.block_size);
  std::vector<TimedPass> warm;  // buffers grow, and a GPU records its passes
  time_passes(program, settings.max_sequences, settings.max_batch_tokens,
              std::min<std::int64_t>(program.options.num_blocks.value() * program.options.block_size / 2,
                                     settings.max_sequences * model.max_position_embeddings / 2),
              warm);
  TimedEngine timed(program, settings);
  Engine& engine = timed.engine;
  ServedTraffic served;
  std::vector<double> first_tokens, output_tokens;
  std::string error;
  const Clock::time_point begin = Clock::now();
  std::size_t next = 0;
  const auto add = [&](std::size_t index) {
    const TrafficRequest& asked = traffic.requests[index];
    GenerationRequest request =
        request_of(ids_in_vocabulary(traffic.prompt_ids(index), traffic.block_size, model.vocab_size),
                   asked.output_length);
    engine.check(request);
    const auto arrived = begin + std::chrono::milliseconds(asked.timestamp_ms);
    const auto hear = [&, arrived, first = arrived](const GenerationEvent& event) mutable {
      if (!event.error.empty()) error = event.error;
      if (event.id && first == arrived) {
        first = Clock::now();
        first_tokens.push_back(std::chrono::duration<double, std::milli>(first - arrived).count());
      }
      if (!event.summary) return;
      served.found += event.summary->cached_tokens;
      if (event.summary->generated_tokens > 1)
        output_tokens.push_back(ms_since(first) / static_cast<double>(event.summary->generated_tokens - 1));
    };
    engine.add(index, std::move(request), hear, arrived);
  };
  for (;;) {
    for (; next < traffic.requests.size() &&
           ms_since(begin) >= static_cast<double>(traffic.requests[next].timestamp_ms);
         ++next)
      add(next);
    const Clock::time_point pass = Clock::now();
    if (engine.run_pass()) {
      served.passes.push_back({timed.store.work(), ms_since(pass)});
      refuse_failure(error);
      continue;
    }
    if (next == traffic.requests.size()) break;
    std::this_thread::sleep_until(begin + std::chrono::milliseconds(traffic.requests[next].timestamp_ms));
  }
  refuse_failure(error);
  served.seconds = ms_since(begin) / 1e3;
  served.counters = engine.manager().counters();
  served.counters.preemptions = engine.scheduler().preemptions();
  served.first_token_ms = spread_of(std::move(first_tokens));
  served.output_token_ms = spread_of(std::move(output_tokens));
  return served;
}

}  // namespace kvcache
