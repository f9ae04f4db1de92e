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
  std::string words;       ///< what the article says
  std::string arithmetic;  ///< how the right value comes about
  std::string right;       ///< the right value, in units
  std::string program;     ///< what a program or a manager reports; empty: nothing that a program could
  std::string verdict;     ///< "holds", "**wrong**", with the reason
};

/// The figures of one article.
struct Article {
  std::string number;         ///< "000" to "004"
  std::string title;          ///< the author's
  std::vector<Claim> claims;  ///< in the order of the article
};

/// All that is measured for the claims and does not depend on the machine.
struct Measurements {
  ExperimentResult four;                ///< four sequences of different lengths
  ExperimentResult poisson;             ///< 32 sequences, lengths Poisson(2,000)
  ExperimentResult system_prompt;       ///< 100 requests behind one prefix
  ExperimentResult mixed;               ///< 160 requests of all lengths
  std::int64_t rows_without_cache = 0;  ///< K/V rows of a decode pass at a context of 512 tokens, step 1
  std::int64_t rows_with_cache = 0;     ///< the same, step 2
  std::int64_t bytes_gathered = 0;      ///< in passes of 511 and 512 tokens, step 3 with --attention gather
  std::int64_t bytes_in_place = 0;      ///< the same with --attention paged
  std::int64_t trace_slots = 0;         ///< memory of the replay
  std::int64_t trace_visits = 0;        ///< sequences of the replay
  ReplayResult first_fit;               ///< in contiguous pieces
  ReplayResult best_fit;                ///< the same
  ReplayResult worst_fit;               ///< the same
  ReplayResult blocks;                  ///< in blocks
};

/// Runs the experiments and replays the trace.
Measurements measure();

/// All articles, each figure with its verdict.
std::vector<Article> check_articles(const Measurements& measured);

}  // namespace kvcache
