/// @file
/// What the four programs have in common around their cache: from the command line to a loaded model and
/// requests, and from a report to what is printed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/cli/options.h"
#include "common/engine/run.h"
#include "common/model/transformer.h"
#include "common/tokenizer/tokenizer.h"

namespace kvcache {

namespace cuda {
class Device;  // complete only in a build with CUDA
}

/// A model that is ready to run and the sequences asked for.
struct Program {
  Step step;                                ///< which of the four programs
  Options options;                          ///< as parsed
  std::string model_name;                   ///< the folder, or "random:NAME"
  DType dtype;                              ///< of weights, activations and K/V
  std::unique_ptr<ThreadPool> threads;      ///< for everything that runs on the CPU
  std::shared_ptr<const cuda::Device> gpu;  ///< none: the model runs on the CPU
  std::int64_t memory;                      ///< bytes that K and V can take
  /// That a server takes for them at most where the command line does not say how many: half of what the
  /// machine has left beside the weights, or what a GPU has.
  std::int64_t memory_to_serve;
  std::optional<Tokenizer> tokenizer;  ///< none with random weights
  std::unique_ptr<Transformer> model;  ///< weights loaded, on the device
  /// In the order of the command line, samples of one prompt together. With --serve nobody has asked yet:
  /// then these are what memory is made for, as many whole contexts as can run at a time.
  std::vector<Request> requests;
  std::vector<std::int32_t> pinned_prefix;  ///< ids of --system-prompt; empty: none
  std::vector<std::string> notes = {};      ///< what of the texts is not as their writer may think
};

/// A step's memory of keys and values: its bookkeeping and its storage.
struct Cache {
  std::unique_ptr<KvManager> manager;  ///< plans passes
  std::unique_ptr<KvStore> store;      ///< follows the plans
};

/// How a step makes its cache for a program.
using MakeCache = std::function<Cache(const Program&)>;

/// Loads what `options` ask for and checks every prompt.
/// @throws InputError for a prompt file that cannot be read, a prompt that is empty, too long for the
/// context, or has an id outside the vocabulary, for a trace that would replace what is read, and as the
/// loading of config, weights and tokenizer does. RunError when the device is missing.
Program load_program(Step step, Options options);

/// The prompts of `--demo` where none are given: four of different lengths, the second a longer form of the
/// first.
void add_demo_prompts(Options& options);

/// Rows of a pass at most, where the program serves: as the command line says, or what the device is good at,
/// measured in docs/serving.md. No fewer than the sequences that can run.
std::int64_t rows_of_a_pass(const Program& program);

/// The most tokens that any request can come to: prompt and output, within the context.
std::int64_t longest_request(const Program& program);
/// The same of all requests together.
std::int64_t tokens_of_all_requests(const Program& program);

/// @throws InputError for a prompt that `manager` could never hold, with the numbers and the `remedy`.
void check_capacity(const Program& program, const KvManager& manager, const std::string& remedy);

/// Runs the program's requests and prints the report on stdout: JSON, or text that streams as it is generated
/// when stdout is a terminal.
/// @throws RunError naming the sequences whose logits are not finite, after the report is printed; where that
/// is all of them, in place of it.
/// @return the report, complete with texts.
Report run_and_print(Program& program, const Cache& cache);

}  // namespace kvcache
