/// @file
/// See memory_curves.h.
#include "docs/plots/memory_curves.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "common/base/error.h"
#include "common/model/config.h"
#include "docs/numbers/bookkeeping.h"
#include "docs/numbers/experiments.h"
#include "docs/numbers/formulas.h"
#include "fmt/format.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

using TokenIds = std::vector<std::int32_t>;

KvSizes sizes_of(const char* model, std::int64_t bytes_per_number, std::int64_t max_seq_len) {
  return {kv_bytes_per_token(kv_shape(named_config(model), bytes_per_number)), max_seq_len, 16};
}

void plan_and_commit(KvManager& manager, std::span<const Work> work) {
  const std::optional<PassPlan> plan = manager.plan(work);
  if (!plan)
    throw RunError(
        fmt::format("a manager with room for {} bytes refuses a pass", manager.memory().pool_bytes));
  manager.commit(*plan);
}

/// The trace of requests_come_and_go(). Ids of different visitors differ, but for the system prompts.
std::vector<Visitor> made_up_visitors(std::int64_t count, std::int64_t passes) {
  std::mt19937_64 random(6);  // its numbers are the same everywhere; those of the distributions are not
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  const TokenIds system_prompts[] = {{}, TokenIds(160, 1), TokenIds(320, 2)};
  std::vector<Visitor> visitors;
  for (std::int32_t n = 0; n < count; ++n) {
    Visitor visitor{below(static_cast<std::uint64_t>(passes)), system_prompts[random() % 3], 32 + below(320)};
    visitor.prompt_ids.insert(visitor.prompt_ids.end(), static_cast<std::size_t>(16 + below(128)), 3 + n);
    visitors.push_back(std::move(visitor));
  }
  std::ranges::stable_sort(visitors, {}, &Visitor::arrival);
  return visitors;
}

/// One moment of four: as fine as a picture can show.
MemoryCurve thinned(const MemoryCurve& curve) {
  MemoryCurve result;
  for (std::size_t moment = 0; moment < curve.used.size(); moment += 4) {
    result.reserved.push_back(curve.reserved[moment]);
    result.used.push_back(curve.used[moment]);
  }
  return result;
}

/// Sequences of which each is `length` tokens long and all begin with the same half.
std::vector<TokenIds> sharing_half(std::int64_t count, std::int64_t length) {
  std::vector<TokenIds> sequences;
  for (std::int32_t n = 0; n < count; ++n) {
    TokenIds& ids = sequences.emplace_back(static_cast<std::size_t>(length), n + 1);
    std::fill_n(ids.begin(), length / 2, 0);
  }
  return sequences;
}

}  // namespace

void MemoryCurve::add(const KvMemoryReport& memory) {
  reserved.push_back(memory.reserved_bytes);
  used.push_back(memory.used_bytes);
}

GrowthCurves one_sequence_grows() {
  GrowthCurves curves{sizes_of("llama-3.1-8b", 2, 8192), {}, {}, {}};
  const auto& [bytes_per_token, max_seq_len, block_size] = curves.sizes;
  FlatCacheManager flat({1, max_seq_len, bytes_per_token});
  PagedManager paged({max_seq_len / block_size, block_size, bytes_per_token});
  const TokenIds ids(static_cast<std::size_t>(max_seq_len));
  for (std::int64_t tokens = 1; tokens <= max_seq_len; ++tokens) {
    const Work work[] = {{0, std::span(ids).first(static_cast<std::size_t>(tokens))}};
    plan_and_commit(flat, work);
    plan_and_commit(paged, work);
    if (tokens > 64 && tokens % 64 != 0 && tokens != 200) continue;
    curves.tokens.push_back(tokens);
    curves.flat.add(flat.memory());
    curves.paged.add(paged.memory());
  }
  return curves;
}

MemoryCurve play(KvManager& manager, std::span<const Visitor> visitors, std::int64_t passes) {
  struct Guest {
    TokenIds token_ids;  // prompt, then output
    std::int64_t leaves;
  };
  std::vector<Guest> guests(visitors.size());  // by number of the visitor
  std::vector<std::int32_t> present;
  auto next = visitors.begin();
  MemoryCurve curve;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (; next != visitors.end() && next->arrival == pass; ++next) {
      const auto number = static_cast<std::int32_t>(next - visitors.begin());
      guests[static_cast<std::size_t>(number)] = {next->prompt_ids, pass + next->outputs};
      const Work prefill[] = {{number, next->prompt_ids}};
      plan_and_commit(manager, prefill);
      present.push_back(number);
    }
    std::vector<Work> decode;
    for (const std::int32_t number : present) {
      TokenIds& token_ids = guests[static_cast<std::size_t>(number)].token_ids;
      token_ids.push_back(token_ids.back());
      decode.push_back({number, token_ids});
    }
    if (!decode.empty()) plan_and_commit(manager, decode);
    curve.add(manager.memory());
    std::erase_if(present, [&](std::int32_t number) {
      const bool leaves = guests[static_cast<std::size_t>(number)].leaves == pass + 1;
      if (leaves) manager.free(number);
      return leaves;
    });
  }
  return curve;
}

std::int64_t most_at_once(std::span<const Visitor> visitors, std::int64_t passes) {
  std::int64_t most = 0;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    most = std::max(most, std::ranges::count_if(visitors, [&](const Visitor& visitor) {
                      return visitor.arrival <= pass && pass < visitor.arrival + visitor.outputs;
                    }));
  }
  return most;
}

TraceCurves requests_come_and_go() {
  constexpr std::int64_t kRequests = 120, kPasses = 1200;
  const std::vector<Visitor> visitors = made_up_visitors(kRequests, kPasses);
  TraceCurves curves{
      sizes_of("llama-3.1-8b", 2, 1024), kRequests, most_at_once(visitors, kPasses), {}, {}, {}, {}};
  const auto& [bytes_per_token, max_seq_len, block_size] = curves.sizes;
  FlatCacheManager flat({curves.most_at_once, max_seq_len, bytes_per_token});
  const PagedShape pool{curves.most_at_once * max_seq_len / block_size, block_size, bytes_per_token};
  PagedManager paged(pool);
  PrefixCachingManager shared(pool);
  curves.flat = thinned(play(flat, visitors, kPasses));
  curves.paged = thinned(play(paged, visitors, kPasses));
  curves.shared = thinned(play(shared, visitors, kPasses));
  for (std::int64_t pass = 0; pass < kPasses; pass += 4) curves.pass.push_back(pass);
  return curves;
}

BudgetCurves sequences_in_a_budget() {
  constexpr std::int64_t kBudget = 4'000'000'000;
  BudgetCurves curves{sizes_of("tinyllama-1.1b", 4, 2048), kBudget, {}, {}, {}, {}};
  const auto& [bytes_per_token, max_seq_len, block_size] = curves.sizes;
  const std::int64_t reservations = kBudget / (max_seq_len * bytes_per_token);
  const PagedShape pool{kBudget / (block_size * bytes_per_token), block_size, bytes_per_token};
  for (const std::int64_t length : {64, 128, 200, 512, 1024, 2048}) {
    // More than fit, even if half of each is shared.
    const std::int64_t many = 2 * kBudget / (length * bytes_per_token) + 2;
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(many), length);
    const std::vector<TokenIds> different = sequences_of(lengths);
    FlatCacheManager flat({reservations, max_seq_len, bytes_per_token});
    PagedManager paged(pool);
    PrefixCachingManager shared(pool);
    curves.length.push_back(length);
    curves.flat.push_back(admit_until_refused(flat, different));
    curves.paged.push_back(admit_until_refused(paged, different));
    curves.shared.push_back(admit_until_refused(shared, sharing_half(many, length)));
  }
  return curves;
}

BlockSizeWaste waste_by_block_size() {
  BlockSizeWaste curve;
  std::vector<std::int64_t> lengths;
  for (const TokenIds& ids : mixed_requests().sequences) {
    lengths.push_back(std::ssize(ids));
    curve.tokens += std::ssize(ids);
  }
  curve.sequences = std::ssize(lengths);
  for (std::int64_t block_size = 1; block_size <= 256; block_size *= 2) {
    const KvMemoryReport memory = paged_memory(lengths, block_size, /*bytes_per_token=*/1);
    curve.block_size.push_back(block_size);
    curve.waste.push_back(wasted_share(memory.reserved_bytes, memory.used_bytes));
  }
  return curve;
}

MemoryCurves memory_curves() {
  return {one_sequence_grows(), requests_come_and_go(), sequences_in_a_budget(), waste_by_block_size()};
}

}  // namespace kvcache
