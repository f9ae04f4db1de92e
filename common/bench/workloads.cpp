/// @file
/// See workloads.h.
#include "common/bench/workloads.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/bench/statistics.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using enum Workload::Timed;

/// An id for each n, spread over the vocabulary.
std::int32_t made_up_id(std::int64_t n, std::int64_t vocab_size) {
  return static_cast<std::int32_t>((n * 7919 + 1) % vocab_size);
}

}  // namespace

// Long contexts get few tokens, since step 1 computes all rows again for each. At least two decode passes
// remain to be timed (workloads.h).
std::vector<Workload> workloads() {
  std::vector<Workload> list;
  for (const std::int64_t prompt : {64, 128, 256, 512, 1024, 2048})
    list.push_back({.name = fmt::format("time_to_first_token/prompt:{}", prompt),
                    .prompt = prompt,
                    .sequences = 1,
                    .tokens = 1,
                    .timed = first_token});
  for (const std::int64_t context : {64, 128, 256, 512, 1024, 2048})
    list.push_back({.name = fmt::format("decode/context:{}", context),
                    .prompt = context,
                    .sequences = 1,
                    .tokens = context > 1024 ? 6 : 12,
                    .timed = decode_pass});
  for (const std::int64_t context : {128, 512, 2048})
    list.push_back({.name = fmt::format("decode/context:{}/sequences:8", context),
                    .prompt = context,
                    .sequences = 8,
                    .tokens = context > 1024 ? 5 : 6,
                    .timed = decode_pass});
  for (const std::int64_t sequences : {32, 64})
    list.push_back({.name = fmt::format("decode/context:1024/sequences:{}", sequences),
                    .prompt = 1024,
                    .sequences = sequences,
                    .tokens = 12,
                    .timed = decode_pass,
                    .on_gpu = true});
  for (const std::int64_t tokens : {64, 256})
    list.push_back({.name = fmt::format("generate/prompt:64/tokens:{}", tokens),
                    .prompt = 64,
                    .sequences = 1,
                    .tokens = tokens,
                    .timed = all});
  struct Shared {
    std::int64_t prefix, requests;
  };
  for (const auto [prefix, requests] : {Shared{128, 16}, Shared{512, 16}, Shared{2048, 1}}) {
    Workload cold{.name = fmt::format("shared_prefix/prefix:{}/requests:{}", prefix, requests),
                  .prompt = prefix + 32,
                  .sequences = requests,
                  .tokens = 1,
                  .timed = all_first_tokens,
                  .shared = prefix,
                  .on_gpu = prefix > 512};
    Workload warm = cold;
    warm.name += "/warm";
    warm.warm = true;
    list.push_back(std::move(cold));
    list.push_back(std::move(warm));
  }
  return list;
}

std::vector<Request> requests_of(const Workload& workload, std::int64_t vocab_size) {
  std::vector<Request> requests(static_cast<std::size_t>(workload.sequences));
  for (std::int64_t s = 0; s < workload.sequences; ++s) {
    Request& request = requests[static_cast<std::size_t>(s)];
    for (std::int64_t n = 0; n < workload.prompt; ++n)
      request.prompt_ids.push_back(made_up_id(n < workload.shared ? n : n + 3001 * (s + 1), vocab_size));
    request.max_tokens = workload.tokens;
    request.ignore_eos = true;
  }
  return requests;
}

Request request_before(const Workload& workload, std::int64_t vocab_size) {
  Request request;
  request.max_tokens = 0;
  for (std::int64_t n = 0; n < workload.shared; ++n) request.prompt_ids.push_back(made_up_id(n, vocab_size));
  return request;
}

double context_of(const Workload& workload) {
  const auto prompt = static_cast<double>(workload.prompt), tokens = static_cast<double>(workload.tokens);
  // Decode pass n attends to prompt + n tokens. There are tokens - 1 passes, and the first ones are not
  // timed.
  if (workload.timed == decode_pass) return prompt + (tokens + kUntimedDecodePasses) / 2;
  return workload.timed == all ? prompt + (tokens - 1) / 2 : prompt;
}

double timed_ms(Workload::Timed timed, std::span<const double> prefill_ms,
                std::span<const double> decode_ms) {
  const auto sum = [](std::span<const double> ms) { return std::accumulate(ms.begin(), ms.end(), 0.0); };
  switch (timed) {
    case first_token:
      return prefill_ms.front();
    case decode_pass:
      return median(
          {decode_ms.begin() + std::min(kUntimedDecodePasses, std::ssize(decode_ms)), decode_ms.end()});
    case all:
      return sum(prefill_ms) + sum(decode_ms);
    case all_first_tokens:
      return sum(prefill_ms);
  }
  return 0;
}

}  // namespace kvcache
