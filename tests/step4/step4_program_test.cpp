// step4_prefix_cache as a user runs it: ids and logits are those of step 1, bit for bit, whatever is shared,
// evicted, copied, moved or computed again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

const std::string kStep = "step4_prefix_cache";

Arguments joined(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Arguments kModel{"--model", kTinyModel};

Json report_of(const std::string& step, const Arguments& arguments) {
  return kvcache::report_of(step, joined({"--model", kTinyModel, "--ignore-eos"}, arguments));
}

/// Runs step 4 and checks what must be true of every report.
Json report_of(const Arguments& arguments, std::int64_t pinned_blocks = 0) {
  Json report = report_of(kStep, arguments);
  const Json& blocks = report["blocks"];
  EXPECT_EQ(blocks["in_use"], pinned_blocks);
  EXPECT_EQ(blocks["free"].get<std::int64_t>() + blocks["cached"].get<std::int64_t>() + pinned_blocks,
            blocks["total"].get<std::int64_t>());
  EXPECT_LE(report["kv_memory"]["used_bytes"], report["kv_memory"]["reserved_bytes"]);
  EXPECT_LE(report["kv_memory"]["reserved_bytes"], report["kv_memory"]["pool_bytes"]);
  return report;
}

std::int64_t counter(const Json& report, const char* name) {
  return report["counters"][name].get<std::int64_t>();
}

void expect_same_answers(const Json& report, const Json& expected) {
  ASSERT_EQ(report["sequences"].size(), expected["sequences"].size());
  for (std::size_t n = 0; n < report["sequences"].size(); ++n) {
    const Json &ours = report["sequences"][n], &theirs = expected["sequences"][n];
    EXPECT_EQ(ours["prompt_ids"], theirs["prompt_ids"]) << n;
    EXPECT_EQ(ours["output_ids"], theirs["output_ids"]) << n;
    EXPECT_TRUE(ours.value("logits", Json()) == theirs.value("logits", Json())) << "logits of " << n;
    EXPECT_EQ(ours["finish_reason"], theirs["finish_reason"]) << n;
  }
}

/// `count` ids of the vocabulary. Ids of different `kind` differ from the first on.
std::vector<std::int64_t> ids_of(std::int64_t kind, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t n = 0; n < count; ++n) ids.push_back((kind * 37 + n * (kind + 5) + 1) % 700);
  return ids;
}
std::vector<std::int64_t> joined(std::vector<std::int64_t> first, const std::vector<std::int64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
Arguments as_option(const std::vector<std::int64_t>& ids) {
  return {"--ids", fmt::format("{}", fmt::join(ids, ","))};
}

/// Prompts that share beginnings in several ways, and some that share none.
Arguments family_of_prompts() {
  const std::vector<std::int64_t> stem = ids_of(1, 21);
  Arguments prompts;
  for (const std::int64_t kind : {2, 3}) prompts = joined(prompts, as_option(joined(stem, ids_of(kind, 6))));
  prompts = joined(prompts, as_option(ids_of(4, 30)));
  prompts = joined(prompts, as_option(stem));
  prompts = joined(prompts, as_option(joined(stem, ids_of(2, 6))));
  return joined(prompts, as_option(ids_of(5, 3)));
}

TEST(Step4Program, AnIdenticalPromptIsCachedButForItsLastBlockOrToken) {
  for (const std::int64_t block_size : {1, 8, 16, 17, 32, 256}) {
    SCOPED_TRACE(block_size);
    std::vector<std::int64_t> lengths;
    for (const std::int64_t full : {1, 2}) {
      for (const std::int64_t off : {-1, 0, 1}) {
        const std::int64_t length = full * block_size + off;
        if (length > 0 && length < 512) lengths.push_back(length);
      }
    }
    Arguments once, twice;
    std::int64_t kind = 1;
    for (const std::int64_t length : lengths) {
      const Arguments prompt = as_option(ids_of(kind++, length));
      once = joined(once, prompt);
      twice = joined(joined(twice, prompt), prompt);
    }
    const Arguments common{"--tokens", "2", "--logits"};
    const Json plain = report_of("step1_no_cache", joined(once, common));
    const Json report =
        report_of(joined(joined(twice, common), {"--block-size", std::to_string(block_size)}));
    std::int64_t hits = 0;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      const std::int64_t expected = (lengths[n] - 1) / block_size * block_size;
      EXPECT_EQ(report["sequences"][2 * n]["cached_tokens"], 0) << lengths[n];
      EXPECT_EQ(report["sequences"][2 * n + 1]["cached_tokens"], expected) << lengths[n];
      hits += expected / block_size;
      for (const std::size_t copy : {2 * n, 2 * n + 1}) {
        EXPECT_EQ(report["sequences"][copy]["output_ids"], plain["sequences"][n]["output_ids"]);
        EXPECT_TRUE(report["sequences"][copy]["logits"] == plain["sequences"][n]["logits"]);
      }
    }
    EXPECT_EQ(counter(report, "prefix_hits"), hits);
  }
}

TEST(Step4Program, TheSamePromptFourTimesAnswersAlikeInBlocksOfAnySize) {
  const Arguments prompt = as_option(ids_of(3, 300));
  const Arguments common{"--tokens", "6", "--logits"};
  const Arguments four = joined(joined(prompt, prompt), joined(prompt, prompt));
  const Json plain = report_of("step1_no_cache", joined(prompt, common));
  for (const char* block_size : {"1", "8", "16", "17", "32", "256"}) {
    const Json report = report_of(joined(joined(four, common), {"--block-size", block_size}));
    for (const Json& sequence : report["sequences"]) {
      EXPECT_EQ(sequence["output_ids"], plain["sequences"][0]["output_ids"]) << block_size;
      EXPECT_TRUE(sequence["logits"] == plain["sequences"][0]["logits"]) << block_size;
    }
  }
}

TEST(Step4Program, NoSettingChangesAnAnswer) {
  const Arguments common = joined(family_of_prompts(), {"--tokens", "20", "--logits", "--block-size", "4"});
  const Json plain = report_of("step1_no_cache", joined(family_of_prompts(), {"--tokens", "20", "--logits"}));
  const std::vector<std::string> settings = {
      "",
      "--attention gather",
      "--prefix-cache off",
      "--salt secret",
      "--debug-hash-bits 2",
      "--debug-hash-bits 1 --num-blocks 14",
      "--debug-fill nan",
      "--debug-fill huge --num-blocks 14 --host-blocks 40",
      "--num-blocks 13",
      "--num-blocks 14 --debug-preempt 2",
      "--num-blocks 20 --host-blocks 1 --debug-fill nan",
      "--num-blocks 14 --host-blocks 6 --debug-preempt 3 --debug-fill nan --debug-hash-bits 2",
      "--debug-preempt 1 --num-blocks 30",
      "--debug-preempt 1 --prefix-cache off --debug-fill nan",
      "--threads 3 --num-blocks 16 --host-blocks 100 --attention gather --debug-fill nan",
  };
  for (const std::string& setting : settings) {
    SCOPED_TRACE(setting);
    Arguments more;
    std::istringstream words(setting);
    for (std::string word; words >> word;) more.push_back(word);
    expect_same_answers(report_of(joined(common, more)), plain);
  }
}

TEST(Step4Program, ASmallPoolEvictsAndCountsIt) {
  const Arguments x = as_option(ids_of(6, 60)), y = as_option(ids_of(7, 60));
  // Each takes the whole pool, so none finds its own blocks.
  const Arguments arguments = joined(joined(joined(x, y), x), {"--tokens", "4", "--num-blocks", "4"});
  const Json report = report_of(arguments);
  expect_same_answers(report, report_of(joined(arguments, {"--prefix-cache", "off"})));
  for (const Json& sequence : report["sequences"]) EXPECT_EQ(sequence["cached_tokens"], 0);
  EXPECT_EQ(counter(report, "evictions"), 6);
  EXPECT_EQ(counter(report, "prefix_hits"), 0);
  EXPECT_EQ(report["blocks"]["cached"], 3);
}

TEST(Step4Program, AHostTierBringsBackWhatASmallPoolGivesUp) {
  const Arguments x = as_option(ids_of(6, 60)), y = as_option(ids_of(7, 60));
  const Arguments arguments = joined(joined(joined(x, y), x), {"--tokens", "4", "--num-blocks", "4"});
  const Json plain = report_of(joined(arguments, {"--prefix-cache", "off"}));
  for (const auto& [host_blocks, cached] : {std::pair{"3", 48}, {"50", 48}, {"2", 32}, {"1", 16}}) {
    const Json report = report_of(joined(arguments, {"--host-blocks", host_blocks}));
    expect_same_answers(report, plain);
    EXPECT_EQ(report["sequences"][2]["cached_tokens"], cached) << host_blocks;
    EXPECT_EQ(counter(report, "swaps_in"), cached / 16) << host_blocks;
    EXPECT_GE(counter(report, "swaps_out"), counter(report, "swaps_in"));
  }
}

TEST(Step4Program, SamplesOfOnePromptAreSoloRunsWithTheSeedsThatFollow) {
  const Arguments sampled = joined(joined(as_option(ids_of(8, 37)), as_option(ids_of(9, 16))),
                                   {"--tokens", "24", "--temperature", "1", "--logits"});
  for (const Arguments& more :
       {Arguments{}, Arguments{"--num-blocks", "14"}, Arguments{"--debug-preempt", "3", "--host-blocks", "9"},
        Arguments{"--prefix-cache", "off", "--debug-fill", "nan"}}) {
    const Json report = report_of(joined(joined(sampled, more), {"--seed", "5", "--samples", "3"}));
    ASSERT_EQ(report["sequences"].size(), 6U);
    for (std::size_t sample = 0; sample < 3; ++sample) {
      const Json solo = report_of("step1_no_cache", joined(sampled, {"--seed", std::to_string(5 + sample)}));
      for (const std::size_t prompt : {0U, 1U}) {
        const Json &ours = report["sequences"][3 * prompt + sample], &theirs = solo["sequences"][prompt];
        EXPECT_EQ(ours["output_ids"], theirs["output_ids"]) << prompt << " " << sample;
        EXPECT_TRUE(ours["logits"] == theirs["logits"]) << prompt << " " << sample;
        if (sample > 0) {
          EXPECT_EQ(ours["cached_tokens"], ours["prompt_ids"].size());
        }
      }
    }
    if (more.empty()) {
      EXPECT_EQ(counter(report, "copies"), 2) << "the tail of 37 tokens; 16 have none";
    }
  }
}

TEST(Step4Program, SamplesShareTheFullBlocksOfTheirPrompt) {
  const Json report =
      report_of(joined(as_option(ids_of(8, 37)), {"--tokens", "4", "--temperature", "1", "--samples", "4"}));
  const auto first = report["sequences"][0]["block_table"].get<std::vector<int>>();
  for (std::size_t sample = 1; sample < 4; ++sample) {
    const auto table = report["sequences"][sample]["block_table"].get<std::vector<int>>();
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + 2, table.begin()));
    EXPECT_NE(table[2], first[2]);
  }
  EXPECT_EQ(report["kv_rows"]["computed"], 37 + 4 * 3);
}

class SystemPrompt : public testing::Test {
 protected:
  const std::string text_ = "Once upon a time there was a king who had a daughter";
  const Arguments questions_{"--prompt", text_ + " and", "--prompt", "The wolf",
                             "--prompt", text_,          "--prompt", text_ + " who was so beautiful"};
  const Arguments common_{"--tokens", "12", "--logits"};
  std::int64_t length_ = static_cast<std::int64_t>(
      report_of("step1_no_cache", {"--prompt", text_, "--tokens", "0"})["sequences"][0]["prompt_ids"].size());
};

TEST_F(SystemPrompt, IsComputedOnceSharedByAllThatBeginWithItAndStaysPinned) {
  const Json plain = report_of("step1_no_cache", joined(questions_, common_));
  for (const std::int64_t block_size : {4, 5, 7, 16}) {
    for (const char* prefix_cache : {"on", "off"}) {
      SCOPED_TRACE(fmt::format("blocks of {}, prefix cache {}", block_size, prefix_cache));
      const Json report =
          report_of(joined(joined(questions_, common_),
                           {"--system-prompt", text_, "--block-size", std::to_string(block_size),
                            "--prefix-cache", prefix_cache, "--debug-fill", "nan"}),
                    (length_ + block_size - 1) / block_size);
      expect_same_answers(report, plain);
      EXPECT_EQ(report["sequences"][0]["cached_tokens"], length_);
      EXPECT_EQ(report["sequences"][1]["cached_tokens"], 0);
      EXPECT_EQ(report["sequences"][2]["cached_tokens"], length_ - 1);
      EXPECT_EQ(report["sequences"][3]["cached_tokens"], length_);
      EXPECT_EQ(report["kv_rows"]["recomputed"], 0);
    }
  }
}

TEST_F(SystemPrompt, LivesWithSmallPoolsSamplesPreemptionAndAHostTier) {
  const Json plain = report_of("step1_no_cache", joined(questions_, common_));
  const std::int64_t pinned = (length_ + 3) / 4;
  for (const Arguments& more :
       {Arguments{"--num-blocks", std::to_string(2 * pinned + 5)}, Arguments{"--debug-preempt", "2"},
        Arguments{"--num-blocks", std::to_string(2 * pinned + 5), "--host-blocks", "5", "--debug-preempt",
                  "3"}}) {
    expect_same_answers(
        report_of(
            joined(joined(questions_, common_),
                   joined({"--system-prompt", text_, "--block-size", "4", "--debug-fill", "nan"}, more)),
            pinned),
        plain);
  }
  const Json samples =
      report_of(joined({"--prompt", text_ + " and", "--system-prompt", text_}, {"--samples", "3"}),
                (length_ + 15) / 16);
  EXPECT_EQ(samples["sequences"][2]["output_ids"], samples["sequences"][0]["output_ids"]) << "all are greedy";
}

TEST_F(SystemPrompt, TheDefaultPoolHasRoomForItBesideAnyPrompt) {
  const Json report =
      report_of({"--prompt", "The", "--system-prompt", text_, "--block-size", "1", "--tokens", "3"}, length_);
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 3U);
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
}

TEST_F(SystemPrompt, CountsInTheMemoryReport) {
  const Json report =
      report_of({"--prompt", "The", "--system-prompt", text_, "--block-size", "1", "--tokens", "0"}, length_);
  const std::int64_t per_token = report["kv_memory"]["bytes_per_token"].get<std::int64_t>();
  EXPECT_GE(report["kv_memory"]["reserved_bytes"].get<std::int64_t>(), length_ * per_token);
}

TEST_F(SystemPrompt, APromptThatCannotFitBesideItIsRefusedAndOneThatJustFitsRuns) {
  // Blocks of one token make the numbers plain: the prefix, and the tokens that a prompt does not share with
  // it.
  const auto run_in = [&](std::int64_t blocks, const std::string& prompt) {
    return run_step(kStep, joined(kModel, {"--prompt", prompt, "--system-prompt", text_, "--tokens", "1",
                                           "--block-size", "1", "--num-blocks", std::to_string(blocks)}));
  };
  const auto own = static_cast<std::int64_t>(
      report_of("step1_no_cache", {"--prompt", "The wolf", "--tokens", "0"})["sequences"][0]["prompt_ids"]
          .size());
  EXPECT_EQ(run_in(length_ + own, "The wolf").exit_code, 0);
  const ProgramResult refused = run_in(length_ + own - 1, "The wolf");
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_EQ(refused.err, "error: prompt 1 needs " + std::to_string(own) + " blocks beside the " +
                             std::to_string(length_) + " of the system prompt, and the pool has " +
                             std::to_string(length_ + own - 1) + "; raise --num-blocks or --kv-memory\n");
  EXPECT_EQ(run_in(length_ + 1, text_ + " and").exit_code, 0) << "it shares all but one token";
}

TEST_F(SystemPrompt, AServerWithoutRoomBesideItSpeaksOfARequestAndNotOfAPrompt) {
  const std::string pool = std::to_string(length_);
  const ProgramResult refused =
      run_step(kStep, joined(kModel, {"--serve", "--port", "0", "--system-prompt", text_, "--block-size", "1",
                                      "--num-blocks", pool}));
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_EQ(refused.err, "error: a request needs 1 block beside the " + pool +
                             " of the system prompt, and the pool has " + pool +
                             "; raise --num-blocks or --kv-memory\n");
}

TEST(Step4Program, SharedPrefixInACrowdedPoolEndsWithPreemptionsBounded) {
  const std::vector<std::int64_t> prefix = ids_of(1, 112);
  Arguments prompts;
  for (const std::int64_t kind : {2, 3, 4, 5, 6})
    prompts = joined(prompts, as_option(joined(prefix, ids_of(kind, 10))));
  const Arguments arguments = joined(prompts, {"--tokens", "40", "--logits"});
  const Json report = report_of(joined(arguments, {"--num-blocks", "12"}));
  expect_same_answers(report, report_of("step1_no_cache", arguments));
  EXPECT_GT(counter(report, "preemptions"), 0);
  EXPECT_LT(counter(report, "preemptions"), 5 * 40);
  for (std::size_t n = 1; n < 5; ++n) EXPECT_EQ(report["sequences"][n]["cached_tokens"], 112);
}

TEST(Step4Program, WithoutThePrefixCacheTheReportIsThatOfStepThree) {
  for (const Arguments& more :
       {Arguments{}, Arguments{"--num-blocks", "13"}, Arguments{"--debug-preempt", "2"}}) {
    const Arguments arguments =
        joined(joined(family_of_prompts(), {"--tokens", "20", "--logits", "--block-size", "4"}), more);
    const Json paged = report_of("step3_paged", arguments);
    const Json report = report_of(joined(arguments, {"--prefix-cache", "off"}));
    expect_same_answers(report, paged);
    for (std::size_t n = 0; n < paged["sequences"].size(); ++n)
      EXPECT_EQ(report["sequences"][n]["block_table"], paged["sequences"][n]["block_table"]) << n;
    for (const char* part : {"blocks", "counters", "kv_rows", "kv_memory"})
      EXPECT_EQ(report[part], paged[part]) << part;
  }
}

TEST(Step4Program, ASequenceAloneInAFullPoolEndsWithCapacity) {
  const Json report = report_of(
      joined(as_option(ids_of(1, 10)), {"--tokens", "50", "--block-size", "4", "--num-blocks", "5"}));
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "capacity");
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 5 * 4 - 10 + 1U);
}

TEST(Step4Program, WhatCannotFitIsRefusedInOneLine) {
  const auto expect_refusal = [](const Arguments& arguments, const Arguments& parts) {
    kvcache::expect_refusal(kStep, joined(kModel, arguments), 2, parts);
  };
  std::string long_text;
  for (int n = 0; n < 600; ++n) long_text += " wolf";
  expect_refusal({"--system-prompt", long_text, "--prompt", "a"}, {"the system prompt", "512"});
  expect_refusal({"--system-prompt", "Once upon a time there was a king", "--prompt", "a", "--block-size",
                  "1", "--num-blocks", "3"},
                 {"the system prompt", "3", "--num-blocks"});
  // The second of two prompts, each with three sequences.
  Arguments second = {
      "--samples",    "3", "--ids",           "1,2",
      "--num-blocks", "5", "--system-prompt", "Once upon a time there was a king who had a daughter"};
  std::string nines = "9";
  for (int n = 1; n < 70; ++n) nines += ",9";
  expect_refusal(joined(second, {"--ids", nines}), {"prompt 2 needs 5 blocks"});
  expect_refusal({"--host-blocks", "2147483647", "--block-size", "64"}, {"2147483647", "host"});
  expect_refusal({"--samples", "0"}, {"--samples", "0"});
}

TEST(Step4Program, TheRunOfTheDemoSharesToo) {
  const ProgramResult result = run_step(kStep, {"--demo", "--tokens", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("0 prefix hits"), std::string::npos) << result.out;
}

TEST(Step4Program, TheDemoShowsSharingAnEvictionAndACopy) {
  const ProgramResult result = run_step(kStep, joined(kModel, {"--demo", "--tokens", "2"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"14 tokens, 8 of them there already, 6 computed", "12 of them there already, 2 computed",
        "16 computed; 1 evicted", "; block 5 copied to", "references", "free queue"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in:\n" << result.out;
}

}  // namespace
}  // namespace kvcache
