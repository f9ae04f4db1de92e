/// @file
/// The waste experiments: the same requests through the programs of steps 2, 3 and 4. Every size is from a
/// program's own report, and none depends on the machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvcache {

/// The folder of this program, in which the steps' programs lie too.
std::filesystem::path folder_of_programs();

/// The report of build/bin/`step` with `arguments` and --json.
/// @throws RunError if the program fails, with what it says.
nlohmann::json report_of_step(const std::string& step, std::vector<std::string> arguments);

/// Requests that run together, and the room that step 2 reserves for each.
struct Experiment {
  std::string name;                                  ///< as the table shows it
  std::int64_t max_seq_len = 0;                      ///< positions per reservation
  std::vector<std::vector<std::int32_t>> sequences;  ///< ids; as many as are stored in the end
};

/// The example of article 000: 1,024, 512, 200 and 512 tokens in reservations of 1,024.
Experiment four_sequences();
/// The example of article 002: 32 lengths from a Poisson distribution of mean 2,000 in reservations of
/// 32,768.
Experiment poisson_lengths();
/// The other example of article 002: 100 requests, each 500 common tokens and 20 to 83 of its own.
Experiment common_system_prompt();
/// 160 requests in reservations of 8,192: three in four short and one long, two in three behind one of two
/// system prompts.
Experiment mixed_requests();

/// Of a step's report; 0 where a step has no such thing.
struct StepFigures {
  std::int64_t bytes_per_token = 0;  ///< K and V, all layers
  std::int64_t reserved_bytes = 0;   ///< at the moment of the greatest reservation
  std::int64_t used_bytes = 0;       ///< at that moment
  std::int64_t rows_computed = 0;    ///< K/V rows per layer
  std::int64_t prefix_hits = 0;      ///< blocks
  /// Slots given out.
  std::int64_t reserved_slots() const { return reserved_bytes / bytes_per_token; }
  /// Slots with a token in them, shared ones counted once.
  std::int64_t used_slots() const { return used_bytes / bytes_per_token; }
  double waste() const;  ///< 0 to 1
};

/// One experiment in three steps.
struct ExperimentResult {
  Experiment experiment;  ///< what ran
  StepFigures flat;       ///< step 2
  StepFigures paged;      ///< step 3
  StepFigures shared;     ///< step 4
};

/// Runs an experiment on the programs of steps 2, 3 and 4: `--random-weights tiny`, blocks of 16. The last
/// token of a sequence is generated, so that all of them are there when the last one is stored.
ExperimentResult run_experiment(Experiment experiment);

/// K/V rows that the pass for one more token projects at a context of `context` tokens, in `step`.
std::int64_t rows_of_a_decode_pass(const std::string& step, std::int64_t context);

/// Bytes of K and V that step 3 copies together in a prompt's pass and the next, which ends at a context of
/// `context` tokens.
/// @param attention  "gather" or "paged"
std::int64_t bytes_gathered(const std::string& attention, std::int64_t context);

}  // namespace kvcache
