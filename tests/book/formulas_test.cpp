// The formulas against constants worked out by hand: the right value of each figure in the five articles, and
// wrong values that they must not give.
#include "docs/numbers/formulas.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

constexpr std::int64_t kHalf = 2, kFloat = 4;  // bytes per number

KvShape qwen3() {
  return kv_shape(named_config("qwen3-0.6b"), kHalf);
}
KvShape tinyllama() {
  return kv_shape(named_config("tinyllama-1.1b"), kFloat);
}
constexpr KvShape llama_70b() {
  return {80, 8, 128, kHalf};
}

TEST(Formulas, ATokenCostsKAndVInEveryLayer) {
  EXPECT_EQ(kv_bytes_per_token_and_layer(tinyllama()), 2'048);
  EXPECT_EQ(kv_bytes_per_token(tinyllama()), 45'056);                                     // 44 KiB
  EXPECT_EQ(kv_bytes_per_token(qwen3()), 114'688);                                        // 112 KiB
  EXPECT_EQ(kv_bytes_per_token(llama_70b()), 327'680);                                    // 320 KiB
  EXPECT_EQ(kv_bytes_per_token(kv_shape(named_config("llama-3.1-8b"), kHalf)), 131'072);  // 128 KiB
  EXPECT_EQ(kv_bytes_per_token(kv_shape(named_config("qwen3-8b"), kHalf)), 147'456);      // 144 KiB
}

TEST(Formulas, AgreeWithTheConfigurationThatTheStepsUse) {
  for (const char* name : {"fairytale", "qwen2.5-0.5b", "llama-3.2-1b"}) {
    const ModelConfig config = named_config(name);
    EXPECT_EQ(kv_bytes_per_token(kv_shape(config, kFloat)), config.kv_bytes_per_token(kFloat)) << name;
  }
}

TEST(Formulas, ABlockCostsItsTokens) {
  EXPECT_EQ(kv_bytes_per_block(tinyllama(), 16), 720'896);  // 704 KiB
}

TEST(Formulas, AReservationOf1024TokensOfQwen3Is112MiBAndNot114MB) {
  EXPECT_EQ(kv_bytes(qwen3(), 1024), 117'440'512);
  EXPECT_EQ(static_cast<double>(kv_bytes(qwen3(), 1024)) / kMiB, 112.0);
}

TEST(Formulas, ASequenceOf1024TokensOfLlama70BIs336MBAndNotGigabytes) {
  EXPECT_EQ(kv_bytes(llama_70b(), 1024), 335'544'320);
}

TEST(Formulas, ASequenceOf32KTokensOfLlama70BIs10GiB) {
  EXPECT_EQ(kv_bytes(llama_70b(), 32'768), 10'737'418'240);
  EXPECT_EQ(static_cast<double>(kv_bytes(llama_70b(), 32'768)) / kGiB, 10.0);
}

TEST(Formulas, ThirtyTwoReservationsOf32KOfLlama70BAre343597MBAndNot67109) {
  EXPECT_EQ(32 * kv_bytes(llama_70b(), 32'768), 343'597'383'680);
  EXPECT_EQ(32 * kv_bytes(llama_70b(), 2'000), 20'971'520'000);
}

TEST(Formulas, EightKTokensOfA8BModelAreOneGiB) {
  const KvShape llama_8b = kv_shape(named_config("llama-3.1-8b"), kHalf);
  EXPECT_EQ(kv_bytes(llama_8b, 8'192), 1'073'741'824);
}

TEST(Formulas, TinyLlamaReservesEightyEightMiBForASequence) {
  EXPECT_EQ(kv_bytes(tinyllama(), 2'048), 92'274'688);
  EXPECT_EQ(static_cast<double>(kv_bytes(tinyllama(), 2'048)) / kMiB, 88.0);
  EXPECT_EQ(10 * kv_bytes(tinyllama(), 2'048), 922'746'880);
}

TEST(Formulas, ThirteenBlocksHoldTwoHundredTokens) {
  EXPECT_EQ(blocks_that_hold(200, 16), 13);
  EXPECT_EQ(13 * kv_bytes_per_block(tinyllama(), 16), 9'371'648);  // 9.37 MB, 8.94 MiB, and not 9.1 of either
  EXPECT_EQ(kv_bytes(tinyllama(), 15), 675'840);                   // 0.68 MB, 0.645 MiB, and not 0.66
}

TEST(Formulas, BlocksAreRoundedUp) {
  EXPECT_EQ(blocks_that_hold(0, 16), 0);
  EXPECT_EQ(blocks_that_hold(1, 16), 1);
  EXPECT_EQ(blocks_that_hold(16, 16), 1);
  EXPECT_EQ(blocks_that_hold(17, 16), 2);
  EXPECT_EQ(blocks_that_hold(6, 4), 2);
  EXPECT_EQ(blocks_that_hold(9, 4), 3);
  EXPECT_EQ(blocks_that_hold(42, 16), 3);
}

TEST(Formulas, A500TokenPrefixIs32BlocksOfWhich31CanBeShared) {
  EXPECT_EQ(blocks_that_hold(500, 16), 32);
  EXPECT_EQ(shareable_blocks(500, 16), 31);
}

TEST(Formulas, ASlotIsCountedInSixtyFourBits) {
  EXPECT_EQ(slot_of(7, 16, 3), 115);
  EXPECT_EQ(slot_of(2'000'000'000, 16, 5), 32'000'000'005);
}

TEST(Formulas, WasteIsTheEmptyPartOfWhatIsReserved) {
  EXPECT_DOUBLE_EQ(wasted_share(4'096, 2'248), 0.451171875);
  EXPECT_DOUBLE_EQ(wasted_share(32'768, 2'048), 0.9375);
  EXPECT_DOUBLE_EQ(wasted_share(32 * 32'768, 32 * 2'000), 0.93896484375);
  EXPECT_EQ(kv_bytes(qwen3(), 4'096 - 2'248), 211'943'424);  // 211.9 MB, 202.1 MiB
  EXPECT_EQ(wasted_share(0, 0), 0.0);
}

TEST(Formulas, FourGigabytesHold43ReservationsAndFourGibibytes46AndNeither45) {
  const std::int64_t reservation = kv_bytes(tinyllama(), 2'048);
  EXPECT_EQ(sequences_that_fit(4'000'000'000, reservation), 43);
  EXPECT_EQ(sequences_that_fit(4'294'967'296, reservation), 46);
}

TEST(Formulas, FourGigabytesHold426PagedSequencesAndFourGibibytes458AndNeither440) {
  const std::int64_t paged = 13 * kv_bytes_per_block(tinyllama(), 16);
  EXPECT_EQ(sequences_that_fit(4'000'000'000, paged), 426);
  EXPECT_EQ(sequences_that_fit(4'294'967'296, paged), 458);
}

TEST(Formulas, TheQkvProjectionHasOneColumnPerNumberOfQAndKAndV) {
  const MatmulShape with_cache = qkv_projection(named_config("qwen3-0.6b"), 1);
  EXPECT_EQ(with_cache.inner, 1'024);
  EXPECT_EQ(with_cache.columns, 4'096);
  EXPECT_EQ(with_cache.flops(), 8'388'608);
  EXPECT_EQ(qkv_projection(named_config("qwen3-0.6b"), 512).flops(), 512 * with_cache.flops());

  ModelConfig gemma;  // Gemma 3 27B: 16 KV heads and 5,376 wide, and not 8 and 4,608
  gemma.hidden_size = 5376, gemma.heads = 32, gemma.kv_heads = 16, gemma.head_dim = 128;
  EXPECT_EQ(qkv_projection(gemma, 1).inner, 5'376);
  EXPECT_EQ(qkv_projection(gemma, 1).columns, 8'192);

  ModelConfig llama;  // Llama 3 70B
  llama.hidden_size = 8192, llama.heads = 64, llama.kv_heads = 8, llama.head_dim = 128;
  EXPECT_EQ(qkv_projection(llama, 1).columns, 10'240);
}

TEST(Formulas, WithoutACacheEveryPassProjectsAllRowsAgain) {
  EXPECT_EQ(kv_rows_with_cache(3, 4), 6);  // the fourth output is never fed back
  EXPECT_EQ(kv_rows_without_cache(3, 4), 3 + 4 + 5 + 6);
  EXPECT_EQ(kv_rows_with_cache(5, 1), 5);
  EXPECT_EQ(kv_rows_without_cache(5, 1), 5);
  EXPECT_EQ(kv_rows_without_cache(1, 512), 131'328);  // 256.5 times the 512 rows with a cache
}

TEST(Formulas, ParametersAreThoseOfTheModelCards) {
  EXPECT_EQ(parameters(named_config("qwen3-0.6b")), 596'049'920);
  EXPECT_EQ(parameters(named_config("qwen2.5-0.5b")), 494'032'768);
  EXPECT_EQ(parameters(named_config("tinyllama-1.1b")), 1'100'048'384);
  EXPECT_EQ(parameters(named_config("llama-3.1-8b")), 8'030'261'248);
}

TEST(Formulas, ADecodeStepReadsAllWeightsAndAllKeysAndValues) {
  const DecodeCost qwen3_step = decode_step(named_config("qwen3-0.6b"), 1, 1'024, kHalf);
  EXPECT_EQ(qwen3_step.weight_bytes, 2 * 596'049'920);  // the output head is the embedding
  EXPECT_EQ(qwen3_step.kv_bytes, 117'440'512);
  // 2 x (440,401,920 in the layers' matrices + 151,936 x 1,024) + 28 x 4 x 16 x 128 x 1,024
  EXPECT_EQ(qwen3_step.flops, 2 * (440'401'920 + 155'582'464) + 234'881'024);

  // An output head of its own is read, and the embedding is not: 2 x (8,030,261,248 - 128,256 x 4,096).
  const DecodeCost llama_step = decode_step(named_config("llama-3.1-8b"), 1, 1, kHalf);
  EXPECT_EQ(llama_step.weight_bytes, 15'009'849'344);
}

TEST(Formulas, MoreSequencesReadTheWeightsOnlyOnce) {
  const ModelConfig config = named_config("llama-3.1-8b");
  const DecodeCost one = decode_step(config, 1, 2'048, kHalf), many = decode_step(config, 32, 2'048, kHalf);
  EXPECT_EQ(many.weight_bytes, one.weight_bytes);
  EXPECT_EQ(many.kv_bytes, 32 * one.kv_bytes);
  EXPECT_EQ(many.flops, 32 * one.flops);
  EXPECT_NEAR(one.flops_per_byte(), 1.05, 0.05);  // one multiply-add for every two bytes: bound by memory
}

}  // namespace
}  // namespace kvcache
