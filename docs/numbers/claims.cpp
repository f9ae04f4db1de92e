/// @file
/// See claims.h.
#include "docs/numbers/claims.h"
#include "common/cli/print.h"

#include <cmath>
#include <utility>

#include "docs/numbers/bookkeeping.h"
#include "docs/numbers/formulas.h"
#include "docs/numbers/verdict.h"
#include "fmt/format.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 16, kHalf = 2, kFloat = 4;
constexpr std::int64_t kFourGB = 4'000'000'000, kFourGiB = 4LL << 30;

/// As in the config.json that each was published with; both are too large to be offered by --random-weights.
ModelConfig llama_70b() {
  ModelConfig config;
  config.layers = 80, config.hidden_size = 8192, config.heads = 64, config.kv_heads = 8,
  config.head_dim = 128;
  return config;
}
ModelConfig gemma_27b() {
  ModelConfig config;
  config.layers = 62, config.hidden_size = 5376, config.heads = 32, config.kv_heads = 16,
  config.head_dim = 128;
  return config;
}

/// "[N, 1024] x [1024, 4096]".
std::string shape(const MatmulShape& matmul, const std::string& rows) {
  return fmt::format("[{}, {}] x [{}, {}]", rows, matmul.inner, matmul.inner, matmul.columns);
}

Claim qkv_claim(const std::string& model, const ModelConfig& config, std::int64_t printed_hidden,
                std::int64_t printed_columns) {
  const MatmulShape right = qkv_projection(config, 1);
  const bool holds = right.inner == printed_hidden && right.columns == printed_columns;
  return {fmt::format("{}: [N, {}] x [{}, {}], with a cache N = 1", model, printed_hidden, printed_hidden,
                      printed_columns),
          fmt::format("({} + 2 x {}) x {}", config.heads, config.kv_heads, config.head_dim),
          shape(right, "N") + ", " + shape(right, "1"), "",
          holds ? "holds"
                : fmt::format("**wrong**: the model is {} wide and has {} KV heads", right.inner,
                              config.kv_heads)};
}

/// "1,848 of 4,096 slots empty, 45.1%".
std::string waste_of(const StepFigures& step) {
  return fmt::format("{} of {} slots empty, {}", grouped(step.reserved_slots() - step.used_slots()),
                     grouped(step.reserved_slots()), percent(step.waste()));
}

std::vector<Claim> qkv_claims(const Measurements& measured) {
  const ModelConfig qwen3 = named_config("qwen3-0.6b");
  const std::int64_t ratio = qkv_projection(qwen3, 512).flops() / qkv_projection(qwen3, 1).flops();
  const double whole =
      static_cast<double>(kv_rows_without_cache(1, 512)) / static_cast<double>(kv_rows_with_cache(1, 512));
  return {
      qkv_claim("Qwen3-0.6B", qwen3, 1024, 4096),
      qkv_claim("Gemma 3 27B", gemma_27b(), 4608, 6144),
      qkv_claim("Llama 3 70B", llama_70b(), 8192, 10240),
      {"~512x less K/V projection at sequence 512: [512, 1024] x [1024, 4096] to [1, 1024] x [1024, 4096]",
       "512 rows / 1 row",
       fmt::format("{} times in that step; {:.1f} times over all steps up to it", ratio, whole),
       fmt::format("rows of that pass: step 1 {}, step 2 {}", measured.rows_without_cache,
                   measured.rows_with_cache),
       verdict(512, 1, static_cast<double>(ratio)) + " for one step"},
  };
}

std::vector<Claim> flat_size_claims(const Measurements& measured) {
  const KvShape qwen3 = kv_shape(named_config("qwen3-0.6b"), kHalf), llama = kv_shape(llama_70b(), kHalf);
  const std::int64_t sequence = kv_bytes(qwen3, 1024), llama_sequence = kv_bytes(llama, 1024);
  const std::int64_t lengths[] = {1024, 512, 200, 512};
  const KvMemoryReport flat = flat_memory(lengths, 1024, kv_bytes_per_token(qwen3));
  const std::int64_t wasted = kv_bytes(qwen3, 4 * 1024 - 2248);
  return {
      {"Qwen3-0.6B, 1,024 tokens: ~114 MB", "2 x 1,024 x 28 x 8 x 128 x 2", size(sequence, 'M'),
       size(flat.reserved_bytes / 4, 'M') + " reserved by step 2", verdict({114, 1, 'M'}, sequence)},
      {"Llama 3 70B, the same: multiple GBs", "2 x 1,024 x 80 x 8 x 128 x 2", size(llama_sequence, 'M'), "",
       fmt::format("**wrong**: a third of a GB; 2 GB are {} tokens",
                   grouped(blocks_that_hold(static_cast<std::int64_t>(2 * kGB), kv_bytes_per_token(llama))))},
      {"4 sequences: 4096 slots, 2248 used, 45% waste", "1 - 2,248 / 4,096",
       percent(wasted_share(4096, 2248)),
       "step 2: " + waste_of(measured.four.flat) + "; step 3: " + percent(measured.four.paged.waste()),
       verdict(45, 1, 100 * wasted_share(4096, 2248))},
      {"~112KB per token", "2 x 28 x 8 x 128 x 2", size(kv_bytes_per_token(qwen3), 'k'),
       size(flat.bytes_per_token, 'k'), verdict({112, 1, 'k'}, kv_bytes_per_token(qwen3))},
      {"~202MB wasted", "1,848 x 114,688", size(wasted, 'M'),
       size(flat.reserved_bytes - flat.used_bytes, 'M') + " in step 2's account",
       verdict({202, 1, 'M'}, wasted)},
      {"of ~448MB", "4,096 x 114,688", size(4 * sequence, 'M'),
       size(flat.reserved_bytes, 'M') + " in step 2's account", verdict({448, 1, 'M'}, 4 * sequence)},
      {"a block is allocated in O(1)", "the last entry of a list", "the same work in a pool of any size",
       "bench_bookkeeping times pools of 10^3, 10^5 and 10^6 blocks", "holds"},
  };
}

std::vector<Claim> article_000(const Measurements& measured) {
  std::vector<Claim> claims = qkv_claims(measured);
  for (Claim& claim : flat_size_claims(measured)) claims.push_back(std::move(claim));
  return claims;
}

std::vector<Claim> article_001(const Measurements& measured) {
  const std::int64_t length[] = {10};
  const KvMemoryReport memory = flat_memory(length, 1000, 1);
  const std::int64_t slot = slot_of(2, kBlockSize, 17 % kBlockSize);
  const StepFigures& shared = measured.system_prompt.shared;
  const std::int64_t own = measured.system_prompt.paged.rows_computed - 100 * 500;
  return {
      {"10 tokens waste the remaining 990", "1,000 - 10",
       fmt::format("990, {}", percent(wasted_share(1000, 10))),
       fmt::format("step 2's account: {}", memory.reserved_bytes - memory.used_bytes), "holds"},
      {"blocks of tokens 0-15, 16-31, 32-47 at 7, 2, 14",
       "token 17: block 17 / 16 = 1, at 2; 2 x 16 + 17 % 16", fmt::format("slot {}", slot), "", "holds"},
      {"a block is appended when the length is a multiple of block_size", "blocks(n + 1) - blocks(n)",
       "1 if n is a multiple of 16, else 0",
       fmt::format("step 3's manager, lengths 1 to 100: {}",
                   grows_at_multiples_only(100, kBlockSize) ? "as claimed" : "not as claimed"),
       "holds"},
      {"every later request with the prompt processes its own tokens only", "500 - 31 x 16",
       "its own tokens, and the last 4 of the 500: their block is not full",
       fmt::format("step 4, 100 requests: {} rows = 500 + {} own + 99 x {}", grouped(shared.rows_computed),
                   grouped(own), (shared.rows_computed - 500 - own) / 99),
       "holds, except for the tokens of the block that is not full"},
  };
}

std::vector<Claim> poisson_claims(const Measurements& measured) {
  const KvShape llama = kv_shape(llama_70b(), kHalf);
  const StepFigures& flat = measured.poisson.flat;
  const std::int64_t reserved = 32 * kv_bytes(llama, 32768), used = 32 * kv_bytes(llama, 2000);
  return {
      {"32 requests: allocated 67109 MB", "32 x 32,768 x 80 x 2 x 8 x 128 x 2", size(reserved, 'M'),
       fmt::format("step 2 reserves {} slots: {}", grouped(flat.reserved_slots()),
                   size(kv_bytes(llama, flat.reserved_slots()), 'M')),
       verdict({67109, 1, 'M'}, reserved)},
      {"used 4194 MB", "32 x 2,000 x 327,680", size(used, 'M'),
       fmt::format("step 2 fills {}: {}", grouped(flat.used_slots()),
                   size(kv_bytes(llama, flat.used_slots()), 'M')),
       verdict({4194, 1, 'M'}, used)},
      {"lengths from Poisson(2,000): waste 93.7%",
       "1 - 2,000 / 32,768; the mean of 32 lengths has a deviation of sqrt(2,000 / 32) = 8",
       fmt::format("{}; 93.7% needs a mean above 2,048", percent(wasted_share(32768, 2000))),
       fmt::format("step 2 {}, step 3 {}", percent(flat.waste()), percent(measured.poisson.paged.waste())),
       verdict(93.7, 0.1, 100 * wasted_share(32768, 2000)) + ", more than chance explains"},
      {"90%+ waste, and near zero in blocks", "7.5 of 2,007.5 slots on average", percent(7.5 / 2007.5),
       fmt::format("step 2 {}, step 3 {}", percent(flat.waste()), percent(measured.poisson.paged.waste())),
       "holds at these lengths"},
      {"no internal fragmentation", "up to 16 - 1 slots per sequence", "15 slots at most",
       fmt::format("step 3: {}", waste_of(measured.poisson.paged)), "**wrong**: little, not none"},
  };
}

std::vector<Claim> article_002(const Measurements& measured) {
  const KvShape llama = kv_shape(llama_70b(), kHalf);
  const StepFigures& paged = measured.system_prompt.paged;
  const StepFigures& shared = measured.system_prompt.shared;
  std::vector<Claim> claims = {
      {"without caching, every new token costs O(n^2) attention",
       "n (n + 1) / 2 scores per head, with a cache n",
       fmt::format("{} and 512 at n = 512", grouped(512 * 513 / 2)),
       fmt::format("rows of that pass: step 1 {}, step 2 {}", measured.rows_without_cache,
                   measured.rows_with_cache),
       "holds of attention; the projections, most of the work in short contexts, cost O(n)"},
      {"per layer 2 x H x D x T x sizeof(float16), with H = 8, D = 128; in total x L x batch_size",
       "2 x 8 x 128 x 2 x 80", size(kv_bytes_per_token(llama), 'k') + " per token", "",
       "holds if H are the KV heads, D the head_dim and T the tokens of one sequence"},
      {"Llama-3-70B, 32K tokens: ~10 GB", "32,768 x 327,680", size(kv_bytes(llama, 32768), 'G'), "",
       verdict({10, 1, 'G'}, kv_bytes(llama, 32768))},
      {"32K max, 2K average: 94% wasted", "1 - 2,048 / 32,768", percent(wasted_share(32768, 2048)), "",
       verdict(94, 1, 100 * wasted_share(32768, 2048))},
  };
  for (Claim& claim : poisson_claims(measured)) claims.push_back(std::move(claim));
  claims.push_back({"100 requests, 500-token prompt: ~1-2 blocks shared",
                    "ceil(500 / 16) blocks, floor(500 / 16) of them full",
                    fmt::format("{} blocks; the {} full ones are shared", blocks_that_hold(500, kBlockSize),
                                shareable_blocks(500, kBlockSize)),
                    fmt::format("step 4: {} hits in 99 requests, {} each", grouped(shared.prefix_hits),
                                shared.prefix_hits / 99),
                    "**wrong**: only full blocks are shared, floor(500 / size), so 1 or 2 need 167 to 500 "
                    "tokens a block"});
  claims.push_back({"savings scale linearly with requests", "(requests - 1) x 31 blocks",
                    fmt::format("{} slots", grouped(99 * 31 * kBlockSize)),
                    fmt::format("step 3 reserves {} slots, step 4 {}: {} fewer",
                                grouped(paged.reserved_slots()), grouped(shared.reserved_slots()),
                                grouped(paged.reserved_slots() - shared.reserved_slots())),
                    "holds"});
  return claims;
}

std::vector<Claim> budget_claims(const Measurements& measured) {
  const KvShape llama = kv_shape(named_config("llama-3.1-8b"), kHalf);
  const std::int64_t each = kv_bytes(llama, 8192);
  const std::int64_t budget = static_cast<std::int64_t>(60 * kGB);
  const std::int64_t weights = kHalf * parameters(named_config("llama-3.1-8b"));
  const StepFigures& flat = measured.mixed.flat;
  const double used = 1 - flat.waste();
  return {
      {"80 GB card, ~16 GB of weights, 60 GB for the cache", "8,030,261,248 x 2; 80 - 16 = 64",
       size(weights, 'G') + " of weights", "", verdict({16, 1, 'G'}, weights) + "; 4 GB are for the runtime"},
      {"paying for 60 GB, serving like 15", "15 / 60",
       "25%; the PagedAttention paper measured 20.4% to 38.2%",
       fmt::format("step 2, mixed requests: {} used, {:.1f} of 60 GB", percent(used), 60 * used),
       "holds: 25% lies within what the paper measured; the share depends on the lengths"},
      {"a handful of sequences; many tens with paging",
       "60 GB / (8,192 x 131,072); four times, if 15 of 60 are used; 60 GB / (131,072 x 131,072)",
       fmt::format("{} reservations of 8k; {} paged; {} reservations of 128k",
                   sequences_that_fit(budget, each), sequences_that_fit(4 * budget, each),
                   sequences_that_fit(budget, 16 * each)),
       "", "**wrong** for its own 8k: 55 are no handful; holds for longer reservations"},
  };
}

std::vector<Claim> article_003(const Measurements& measured) {
  const auto per_token = [](const char* name) {
    return kv_bytes_per_token(kv_shape(named_config(name), kHalf));
  };
  const std::int64_t context = 8192 * per_token("llama-3.1-8b");
  const DecodeCost step = decode_step(named_config("llama-3.1-8b"), 1, 8192, kHalf);
  const double growth = static_cast<double>(paged_memory({{8192}}, kBlockSize, 1).reserved_bytes) /
                        static_cast<double>(paged_memory({{4096}}, kBlockSize, 1).reserved_bytes);
  std::vector<Claim> claims = {
      {"7-8B, bf16, grouped-query: 100-150 KB per token", "2 x 32 x 8 x 128 x 2; Qwen3 8B has 36 layers",
       fmt::format("Llama 3 8B {}, Qwen3 8B {}", size(per_token("llama-3.1-8b"), 'k'),
                   size(per_token("qwen3-8b"), 'k')),
       "", "holds for these; Qwen2.5-7B with 28 layers and 4 KV heads has 57 kB"},
      {"8k of context: a gigabyte or more, ~1 GB", "8,192 x 131,072", size(context, 'G'), "",
       verdict({1, 1, 'G'}, context)},
      {"~125 KB per token, 16-token block, 8k: the curve's ~1 GB", "125,000 x 8,000; 125,000 / 131,072",
       fmt::format("1.00 GB; {:+.1f}% against Llama 3 8B", 100 * (125'000.0 / 131'072 - 1)),
       "the curve with Llama 3 8B: [pictures](plots/README.md)", "holds as an assumption"},
      {"the cache grows with O(n)", "131,072 bytes for every token", "twice the tokens, twice the bytes",
       fmt::format("step 3's manager, 8,192 tokens against 4,096: {:.2f} times", growth), "holds"},
      {"tokens 0-15, 16-31, 32-47 at 7, 2, 9; slot = p x block_size + o",
       "token 40: 40 / 16 = 2, at 9; 9 x 16 + 8",
       fmt::format("slot {}", slot_of(9, kBlockSize, 40 % kBlockSize)), "", "holds"},
      {"a block leaves the middle of the free list in O(1)", "the links of two neighbours",
       "the same work in a pool of any size", "bench_bookkeeping times pools of 10^3, 10^5 and 10^6 blocks",
       "holds"},
      {"decode is memory-bandwidth-bound", "operations / bytes, Llama 3 8B, 1 sequence of 8,192",
       fmt::format("{:.1f} / {:.1f} x 10^9 = {:.2f} per byte", static_cast<double>(step.flops) / kGB,
                   static_cast<double>(step.weight_bytes + step.kv_bytes) / kGB, step.flops_per_byte()),
       "", "holds: an H100 can do some 300 operations for each byte that it reads"},
      {"8k reserved, 200 generated: 7,800 wasted", "8,000 - 200; 8,192 - 200",
       fmt::format("7,800; {} for 8k = 8,192", grouped(8192 - 200)), "", "holds for 8k = 8,000"},
      {"waste capped at 15 tokens, under one block", "16 - 1", "15 slots",
       fmt::format("step 3's manager, lengths 1 to 100: {}", most_slots_wasted(100, kBlockSize)), "holds"},
      {"no external fragmentation, by construction", "any free block will do",
       "0 refused although enough slots are free",
       fmt::format("trace below: {} refused although enough slots were free; contiguous, first fit, {}",
                   measured.blocks.refused_in_spite_of_room, measured.first_fit.refused_in_spite_of_room),
       measured.blocks.refused_in_spite_of_room == 0 ? "holds" : "**wrong**"},
  };
  for (Claim& claim : budget_claims(measured)) claims.push_back(std::move(claim));
  return claims;
}

/// TinyLlama in float32, as article 004 counts it.
KvShape tinyllama() {
  return kv_shape(named_config("tinyllama-1.1b"), kFloat);
}

Claim share_claim(std::int64_t printed, std::int64_t tokens) {
  const double wasted = wasted_share(2048, tokens);
  return {fmt::format("{} tokens in 2048: {}% wasted", tokens, printed),
          fmt::format("1 - {} / 2,048", tokens), percent(wasted), "",
          verdict(static_cast<double>(printed), 1, 100 * wasted)};
}

std::vector<Claim> refusal_claims() {
  FlatCacheManager manager({10, 2048, kv_bytes_per_token(tinyllama())});
  const std::vector<std::int64_t> lengths = {200, 800, 50, 200, 200, 200, 200, 200, 200, 200, 200, 200};
  const std::int64_t admitted = admit_until_refused(manager, sequences_of(lengths));
  return {
      share_claim(90, 200),
      share_claim(60, 800),
      share_claim(97, 50),
      {"room for 10, the 4th refused", "10 reservations", "the 11th is the first to be refused",
       fmt::format("step 2's manager admits {}", admitted),
       "**wrong**: 10 fit; a 4th is refused where there is room for 3"},
      {"memory used: 30%", "3 / 10 reserved; (200 + 800 + 50) / 20,480 filled",
       fmt::format("30% reserved, {} filled", percent(1 - wasted_share(20480, 1050))), "",
       "holds for what is reserved"},
  };
}

std::vector<Claim> size_claims() {
  const KvShape shape = tinyllama();
  const std::int64_t lengths[] = {200};
  const KvMemoryReport flat = flat_memory(lengths, 2048, kv_bytes_per_token(shape));
  const KvMemoryReport paged = paged_memory(lengths, kBlockSize, kv_bytes_per_token(shape));
  const std::int64_t block = kv_bytes_per_block(shape, kBlockSize), used = 10 * kv_bytes(shape, 200);
  const std::int64_t waste = kv_bytes(shape, 15);
  return {
      {"2,048 bytes per token and layer", "2 x 4 x 64 x 4", grouped(kv_bytes_per_token_and_layer(shape)), "",
       verdict(2048, 1, static_cast<double>(kv_bytes_per_token_and_layer(shape)))},
      {"44 KB per token", "2,048 x 22", size(kv_bytes_per_token(shape), 'k'), size(flat.bytes_per_token, 'k'),
       verdict({44, 1, 'k'}, kv_bytes_per_token(shape))},
      {"704 KB per block", "16 x 45,056", size(block, 'k'), size(paged.reserved_bytes / 13, 'k'),
       verdict({704, 1, 'k'}, block)},
      {"88 MB per reservation", "2,048 x 45,056", size(kv_bytes(shape, 2048), 'M'),
       size(flat.reserved_bytes, 'M'), verdict({88, 1, 'M'}, kv_bytes(shape, 2048))},
      {"10 sequences = 880 MB", "10 x 92,274,688", size(10 * kv_bytes(shape, 2048), 'M'),
       size(10 * flat.reserved_bytes, 'M'), verdict({880, 1, 'M'}, 10 * kv_bytes(shape, 2048))},
      {"actual usage 88 MB", "10 x 200 x 45,056", size(used, 'M'), size(10 * flat.used_bytes, 'M'),
       verdict({88, 1, 'M'}, used)},
      {"13 blocks = 9.1 MB", "ceil(200 / 16) = 13; 13 x 720,896", size(13 * block, 'M'),
       size(paged.reserved_bytes, 'M'), verdict({9.1, 0.1, 'M'}, 13 * block)},
      {"10 sequences = 91 MB", "10 x 9,371,648", size(130 * block, 'M'), size(10 * paged.reserved_bytes, 'M'),
       verdict({91, 1, 'M'}, 130 * block)},
      {"waste at most 0.66 MB per sequence", "15 x 45,056", size(waste, 'M'),
       fmt::format("{} slots at most", most_slots_wasted(100, kBlockSize)),
       verdict({0.66, 0.01, 'M'}, waste)},
      {"~10x less memory", "128 blocks' worth / 13", fmt::format("{:.2f} times", 128.0 / 13),
       fmt::format("{:.2f} times",
                   static_cast<double>(flat.reserved_bytes) / static_cast<double>(paged.reserved_bytes)),
       verdict(10, 1, 128.0 / 13)},
  };
}

/// The first length from which on step 3's waste stays below `share`.
std::int64_t always_below(double share) {
  std::int64_t longest_above = 0;
  for (std::int64_t length = 1; length <= 2048; ++length) {
    const std::int64_t slots = blocks_that_hold(length, kBlockSize) * kBlockSize;
    if (wasted_share(slots, length) >= share) longest_above = length;
  }
  return longest_above + 1;
}

Claim four_percent_claim(const Measurements& measured) {
  return {
      "< 4% waste at the median", "8 / 208 at 200 tokens; 14 / 64 at 50",
      fmt::format("{} at 200 tokens, {} at 50; always below 4% from {} tokens on",
                  percent(wasted_share(208, 200)), percent(wasted_share(64, 50)), always_below(0.04)),
      fmt::format("step 3: {} (4 sequences), {} (Poisson), {} (mixed)", percent(measured.four.paged.waste()),
                  percent(measured.poisson.paged.waste()), percent(measured.mixed.paged.waste())),
      "holds on average from 180 tokens on, not for shorter sequences"};
}

/// Sequences of 200 tokens that step 3's manager admits into a budget.
std::int64_t paged_admitted(std::int64_t budget) {
  const PagedShape shape{sequences_that_fit(budget, kv_bytes_per_block(tinyllama(), kBlockSize)), kBlockSize,
                         kv_bytes_per_token(tinyllama())};
  PagedManager manager(shape);
  return admit_until_refused(manager, sequences_of(std::vector<std::int64_t>(1000, 200)));
}

/// Sequences of 200 tokens that step 2's manager admits into a budget.
std::int64_t flat_admitted(std::int64_t budget) {
  const std::int64_t reservations = sequences_that_fit(budget, kv_bytes(tinyllama(), 2048));
  FlatCacheManager manager({reservations, 2048, kv_bytes_per_token(tinyllama())});
  return admit_until_refused(manager, sequences_of(std::vector<std::int64_t>(1000, 200)));
}

Claim count_claim(std::int64_t printed, const std::string& each, std::int64_t bytes, std::string program) {
  const std::int64_t in_gb = sequences_that_fit(kFourGB, bytes), in_gib = sequences_that_fit(kFourGiB, bytes);
  return {fmt::format("4 GB budget: {} {}", printed, each),
          fmt::format("4 x 10^9 / {}; 2^32 / {}", grouped(bytes), grouped(bytes)),
          fmt::format("{} in 4 GB, {} in 4 GiB", in_gb, in_gib), std::move(program),
          printed == in_gb || printed == in_gib
              ? "holds"
              : fmt::format("**wrong** in both units (4,000 MiB / {} MiB = {:.1f} mixes them)",
                            printed < 100 ? "88" : "9.1", printed < 100 ? 4000 / 88.0 : 4000 / 9.1)};
}

std::vector<Claim> concurrency_claims(const Measurements& measured) {
  const std::int64_t paged = 13 * kv_bytes_per_block(tinyllama(), kBlockSize);
  const std::int64_t reservation = kv_bytes(tinyllama(), 2048);
  const std::int64_t paged_gb = sequences_that_fit(kFourGB, paged),
                     paged_gib = sequences_that_fit(kFourGiB, paged);
  const std::int64_t flat_gb = sequences_that_fit(kFourGB, reservation),
                     flat_gib = sequences_that_fit(kFourGiB, reservation);
  const PagedShape shape{8 * 8192 / kBlockSize, kBlockSize, 1};
  PagedManager step3(shape);
  PrefixCachingManager step4(shape);
  const std::vector<std::vector<std::int32_t>>& mixed = measured.mixed.experiment.sequences;
  return {
      count_claim(
          45, "reservations", reservation,
          fmt::format("step 2's manager admits {} and {}", flat_admitted(kFourGB), flat_admitted(kFourGiB))),
      count_claim(
          440, "paged sequences of 200 tokens", paged,
          fmt::format("step 3's manager admits {} and {}: a hundredth of the pool stays free for growth",
                      paged_admitted(kFourGB), paged_admitted(kFourGiB))),
      {"2-4x more concurrent requests", "reserved / used",
       "2.2 and 4.3 times those of Orca (Oracle) and Orca (Max) in the paper's section 6.2",
       fmt::format("mixed requests in the memory of 8 reservations of 8,192: step 2 8, step 3 {}, step 4 {}",
                   admit_until_refused(step3, mixed), admit_until_refused(step4, mixed)),
       "holds for the paper's requests, not as a rule: its own example gives ~10x. The paper's own \"2-4x\" "
       "is throughput"},
      {"~10x more concurrent sequences in the same memory",
       "4 x 10^9 / 9,371,648 against 4 x 10^9 / 92,274,688",
       fmt::format("{} / {} = {:.1f} times in 4 GB; {} / {} = {:.1f} in 4 GiB", paged_gb, flat_gb,
                   static_cast<double>(paged_gb) / static_cast<double>(flat_gb), paged_gib, flat_gib,
                   static_cast<double>(paged_gib) / static_cast<double>(flat_gib)),
       fmt::format("step 3's manager {}, step 2's {}", paged_admitted(kFourGB), flat_admitted(kFourGB)),
       verdict(10, 1, static_cast<double>(paged_gb) / static_cast<double>(flat_gb)) +
           " for sequences of 200 tokens"},
  };
}

std::vector<Claim> demo_claims(const Measurements& measured) {
  const std::int64_t tokens = kv_rows_with_cache(6, 30), blocks = blocks_that_hold(tokens, kBlockSize);
  PagedManager manager({256, kBlockSize, /*bytes_per_token=*/1});
  admit_until_refused(manager, sequences_of({{tokens}}));
  const std::int64_t used = manager.memory().reserved_bytes;
  manager.free(0);
  const std::int64_t left = manager.memory().reserved_bytes;
  return {
      {"table of 4 blocks up to 64 tokens, of 3 up to 48", "4 x 16, 3 x 16", "64, 48", "", "holds"},
      {"block size 4, table 5 2 8: token 6 in block 2, offset 2", "6 / 4 = 1, 6 % 4 = 2",
       "table[1] = 2, offset 2", "", "holds"},
      {"6 tokens: 2 blocks of 4; 9: 3", "ceil(6 / 4), ceil(9 / 4)",
       fmt::format("{}, {}", blocks_that_hold(6, 4), blocks_that_hold(9, 4)), "", "holds"},
      {"prompt of 6, 30 tokens: 3 blocks used, afterwards all free", "ceil((6 + 30 - 1) / 16)",
       fmt::format("{}, 0", blocks),
       fmt::format("step 3's manager: {}, then {}", used / kBlockSize, left / kBlockSize),
       verdict(3, 1, static_cast<double>(blocks))},
      {"42 tokens: 3 blocks; token 41 at offset 9", "ceil(42 / 16); 41 % 16",
       fmt::format("{}; {}", blocks_that_hold(42, kBlockSize), 41 % kBlockSize), "", "holds"},
      {"249 ms per token from 7229 ms", "7,229 / 29; 7,229 / 30",
       fmt::format("{:.1f} ms for 29 decode passes; {:.1f} if divided by 30 tokens", 7229 / 29.0,
                   7229 / 30.0),
       "ms_per_token of all steps: decode time / decode passes",
       verdict(249, 1, 7229 / 29.0) + ": the first of 30 tokens came from the prefill"},
      {"240 to 250 ms per token: +4%", "250 / 240 - 1", percent(250 / 240.0 - 1), "see Times",
       verdict(4, 1, 100 * (250 / 240.0 - 1)) + " as arithmetic; as a cost, see the verdict in Times"},
      {"prefill of 6 tokens: 111 ms", "111 / 240",
       "half the time of a decode pass, though a prefill of 6 tokens computes more", "",
       "a time of the author's machine, which cannot be checked here. It does not fit the 240 ms of a decode "
       "pass"},
      {"gather: O(seq_len x layers) copies; the fused kernel: none",
       "seq_len x 2 x kv_heads x head_dim x bytes, per layer", "1,023 tokens x 256 bytes",
       fmt::format("passes of 511 and 512 tokens, one layer of 256 bytes a token: gather copies {} bytes, "
                   "the block table {}",
                   grouped(measured.bytes_gathered), grouped(measured.bytes_in_place)),
       "holds"},
      {"the fused kernel on a GPU: overhead near zero", "no copy is made", "0 bytes copied",
       fmt::format("{} bytes; the time: see Times", measured.bytes_in_place),
       "holds of what is copied; of the time, see the verdict in Times"},
  };
}

std::vector<Claim> article_004(const Measurements& measured) {
  std::vector<Claim> claims = refusal_claims();
  const auto append = [&](std::vector<Claim> more) {
    for (Claim& claim : more) claims.push_back(std::move(claim));
  };
  append(size_claims());
  append(
      {{"contiguous waste can be 50-90%, and is so on average", "its own three requests: 1 - 1,050 / 6,144",
        fmt::format("{} together, {} to {} one by one; the paper's systems 61.8% to 79.6%",
                    percent(wasted_share(3 * 2048, 1050)), percent(wasted_share(2048, 800)),
                    percent(wasted_share(2048, 50))),
        fmt::format("step 2: {} (4 sequences), {} (Poisson), {} (mixed), {} (system prompt)",
                    percent(measured.four.flat.waste()), percent(measured.poisson.flat.waste()),
                    percent(measured.mixed.flat.waste()), percent(measured.system_prompt.flat.waste())),
        "**wrong** as bounds: none of our four lies between them, nor does its own third request. As a usual "
        "range it holds of the paper's systems"},
       four_percent_claim(measured)});
  append(concurrency_claims(measured));
  append(demo_claims(measured));
  return claims;
}

}  // namespace

Measurements measure() {
  constexpr std::int64_t slots = 28'672, visits = 2'000;
  const std::vector<Visit> trace = made_up_visits(visits, 1);
  return {run_experiment(four_sequences()),
          run_experiment(poisson_lengths()),
          run_experiment(common_system_prompt()),
          run_experiment(mixed_requests()),
          rows_of_a_decode_pass("step1_no_cache", 512),
          rows_of_a_decode_pass("step2_flat_cache", 512),
          bytes_gathered("gather", 512),
          bytes_gathered("paged", 512),
          slots,
          visits,
          replay_contiguous(trace, slots, Fit::first),
          replay_contiguous(trace, slots, Fit::best),
          replay_contiguous(trace, slots, Fit::worst),
          replay_paged(trace, slots, kBlockSize)};
}

std::vector<Article> check_articles(const Measurements& measured) {
  return {{"000", "petite-vllm Part 2: KV Cache & Paged Attention", article_000(measured)},
          {"001", "PagedAttention in miniVLLM", article_001(measured)},
          {"002", "Building a Production-Grade KV Cache for LLM Inference", article_002(measured)},
          {"003", "KV cache and PagedAttention: memory as the real bottleneck", article_003(measured)},
          {"004", "Part 3: Paged Attention", article_004(measured)}};
}

}  // namespace kvcache
