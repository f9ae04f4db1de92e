/// @file
/// What the four programs do alike around their cache: load the model and the requests that the command line
/// asks for, run them, and print the report.
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

/// A model that is ready to run, and the requests.
struct Program {
  Step step;                                ///< which of the four programs
  Options options;                          ///< as parsed
  std::string model_name;                   ///< the folder, or "random:NAME"
  DType dtype;                              ///< of weights, activations and K/V
  std::unique_ptr<ThreadPool> threads;      ///< for everything that runs on the CPU
  std::shared_ptr<const cuda::Device> gpu;  ///< none: the model runs on the CPU
  std::int64_t memory;                      ///< bytes that K and V can take
  /// Bytes that a server takes for K and V at most, where the command line gives no size: half of the memory
  /// that the weights leave on the CPU, all that they leave on a GPU.
  std::int64_t memory_to_serve;
  std::optional<Tokenizer> tokenizer;  ///< none with random weights
  std::unique_ptr<Transformer> model;  ///< weights loaded, on the device
  /// In the order of the command line, the samples of one prompt together. With --serve there is no request
  /// yet: these then stand for the sequences that can run at a time, each as long as the context.
  std::vector<Request> requests;
  std::vector<std::int32_t> pinned_prefix;  ///< ids of --system-prompt; empty: none
  std::vector<std::string> notes = {};      ///< surprises in the texts, for their writer
};

/// A step's cache: its bookkeeping and its storage.
struct Cache {
  std::unique_ptr<KvManager> manager;   ///< plans passes
  std::unique_ptr<KvStore> store;       ///< follows the plans
  std::vector<std::string> notes = {};  ///< where it differs from what the command line asks for
};

/// How a step makes its cache for a program.
using MakeCache = std::function<Cache(const Program&)>;

/// Checks the files that --trace and --log-trace name: each replaces its file, so the file must be none that
/// this run reads, and not the one that gets stdout. A link to a file counts as the file.
/// @throws InputError that names the file and says what it is.
void check_traces_replace_nothing(const Options& options);

/// Loads what `options` ask for and checks every prompt.
/// @throws InputError for a prompt file that cannot be read; a prompt that is empty, too long for the
/// context, or has an id outside the vocabulary; a trace that would replace a file that is read; and as the
/// readers of config, weights and tokenizer do. RunError when the device is missing.
Program load_program(Step step, Options options);

/// The text of one token, special or not, or "token N" where tokenizer.json's decoder fails.
std::string text_of_token(const Tokenizer& tokenizer, std::int32_t id);

/// Adds the default prompts of `--demo`: four of different lengths, three with the same beginning.
void add_demo_prompts(Options& options);

/// The most rows of a server's pass: as the command line says, else what suits the device (measured in
/// docs/serving.md), and at least one for each sequence that can run.
std::int64_t rows_of_a_pass(const Program& program);

/// The most tokens that one of the requests can have, prompt and output, within the context.
std::int64_t longest_request(const Program& program);
/// The same, summed over all requests.
std::int64_t tokens_of_all_requests(const Program& program);

/// How a message calls request `index` of the program: "prompt 2", or in a server "a request".
std::string name_of_request(const Program& program, std::size_t index);

/// @throws InputError for a prompt that is longer than the capacity of `manager`, with both numbers and the
/// `remedy`.
void check_capacity(const Program& program, const KvManager& manager, const std::string& remedy);

/// Prints the notes of both on stderr, a line each. Called when nothing can be refused any more, because a
/// refusal is a single line.
void print_notes(const Program& program, const Cache& cache);

/// Prints the notes, runs the program's requests and prints the report on stdout, as JSON or as text. A
/// terminal shows the texts while they are generated.
/// @throws RunError that names the sequences that failed, after the report is printed. If all have failed, no
/// report is printed.
/// @return the report, complete with texts.
Report run_and_print(Program& program, const Cache& cache);

}  // namespace kvcache
