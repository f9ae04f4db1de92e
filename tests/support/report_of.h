/// @file
/// The answer of a step's program: its JSON report, or one line that names the mistake.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/checkpoints.h"
#include "tests/support/run_program.h"

namespace kvcache {

/// A prompt of `count` ids of the tiny model's vocabulary, for --ids.
inline std::string ids(int count) {
  std::string ids = "1";
  for (int n = 1; n < count; ++n) ids += "," + std::to_string(n * 37 % 700);
  return ids;
}

/// The report of `step` with `arguments` and --json. The program must print nothing else.
inline nlohmann::json report_of(const std::string& step, std::vector<std::string> arguments,
                                Gpu gpu = Gpu::hidden) {
  arguments.emplace_back("--json");
  const ProgramResult result = run_step(step, arguments, gpu);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return nlohmann::json::parse(result.out);
}

/// Expects exit code `code`, nothing on stdout, and exactly one line on stderr, with every one of `parts`.
inline void expect_refusal(const std::string& step, const std::vector<std::string>& arguments, int code,
                           const std::vector<std::string>& parts, Gpu gpu = Gpu::hidden) {
  const ProgramResult result = run_step(step, arguments, gpu);
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts)
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
}

}  // namespace kvcache
