/// @file
/// Every figure of the five articles, beside the arithmetic and what our programs report.
#pragma once

#include <string>
#include <vector>

#include "docs/numbers/experiments.h"
#include "docs/numbers/fragmentation.h"

namespace kvcache {

/// One figure. The words are a few of the article's own, enough to find it.
struct Claim {
  std::string words;
  std::string arithmetic;
  std::string right;    ///< the right value, in units
  std::string program;  ///< what a program or a manager reports; empty: nothing that a program could
  std::string verdict;
};

struct Article {
  std::string number, title;
  std::vector<Claim> claims;
};

/// All that is measured for the claims and does not depend on the machine.
struct Measurements {
  ExperimentResult four, poisson, system_prompt, mixed;
  std::int64_t rows_without_cache = 0, rows_with_cache = 0;  ///< of a decode pass at a context of 512 tokens
  std::int64_t trace_slots = 0;                              ///< memory of the replay
  std::int64_t trace_visits = 0;
  ReplayResult pieces, blocks;
};

/// Runs the experiments and replays the trace.
Measurements measure();

std::vector<Article> check_articles(const Measurements& measured);

}  // namespace kvcache
