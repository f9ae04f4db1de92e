/// @file
/// The command line, the same in all four programs: which options a step has, what their values mean, and a
/// one-line message for each mistake.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/kv/paged_store_settings.h"
#include "common/model/sampler.h"

namespace kvcache {

/// The four programs.
enum class Step : std::uint8_t { no_cache = 1, flat_cache = 2, paged = 3, prefix_cache = 4 };

/// "step1_no_cache", ...
std::string name_of(Step step);

/// A prompt in a file; prompt_file.h reads it.
struct PromptFile {
  std::string name;                                    ///< "-" is stdin
  bool operator==(const PromptFile&) const = default;  ///< the same name
};

/// One prompt as given: a text to encode, token ids, or a file that holds a text.
using Prompt = std::variant<std::string, std::vector<std::int32_t>, PromptFile>;

/// The value of `--device`. `automatic`: a GPU if one can be used, else the CPU.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// The command line of a step, checked. Each field is the option of its name. An option that the step does
/// not have keeps its default.
struct Options {
  std::filesystem::path model;                    ///< empty: the shipped model
  std::string random_weights;                     ///< a shape's name, or empty
  std::vector<Prompt> prompts;                    ///< in the order of the command line; empty: the default
  std::int64_t tokens = 64;                       ///< new tokens per sequence
  bool ignore_eos = false;                        ///< an end-of-sequence id ends no sequence
  bool no_special_tokens = false;                 ///< the tokenizer adds no special token to a text
  SamplingParams sampling;                        ///< `--temperature`, `--top-k`, `--top-p`, `--seed`
  DeviceChoice device = DeviceChoice::automatic;  ///< where the model runs
  std::optional<DType> dtype;                     ///< none: f32 on the CPU, bf16 on CUDA
  int threads = 0;                                ///< 0: one for each usable processor
  bool json = false;                              ///< the report as one JSON object
  bool logits = false;                            ///< with json: the logits after each prompt
  bool demo = false;                              ///< the walk-through
  // steps 2 to 4
  std::string trace;                             ///< the file for what the cache did; empty: none
  bool serve = false;                            ///< answer HTTP requests until a signal ends it
  std::string host = "127.0.0.1";                ///< the address to listen on
  int port = 5000;                               ///< 0: any free one
  std::optional<std::int64_t> max_batch_tokens;  ///< rows of a pass at most; none: what suits the device
  std::int64_t max_sequences = 16;               ///< running at a time
  std::int64_t max_waiting = 1024;               ///< requests that wait for a place at most
  std::string log_trace;                         ///< the file for the trace of the requests; empty: none
  // step 2
  std::optional<std::int64_t> max_seq_len;  ///< positions reserved per sequence; none: the model's limit
  // steps 3 and 4
  std::int64_t block_size = 16;                    ///< tokens per block
  std::optional<std::int64_t> num_blocks;          ///< none: as many as the sequences need
  std::optional<std::int64_t> kv_memory_bytes;     ///< never together with num_blocks
  bool kv_memory_auto = false;                     ///< what the device has left; without the two above
  AttentionPath attention = AttentionPath::paged;  ///< how K and V reach attention
  DebugFill debug_fill = DebugFill::none;          ///< what fresh blocks are filled with
  std::int64_t debug_preempt_every = 0;            ///< passes between forced preemptions; 0: none
  // step 4
  bool prefix_cache = true;      ///< whether sequences share blocks
  std::string salt;              ///< only sequences of the same salt share
  std::string system_prompt;     ///< a prefix that is computed first and pinned; empty: none
  std::int64_t samples = 1;      ///< continuations of each prompt, by fork
  std::int64_t host_blocks = 0;  ///< in the host tier
  int debug_hash_bits = 64;      ///< bits of a block hash that are kept; few make collisions
};

/// Parses the command line of `step`. `--help` and `--version` print on stdout and return nothing.
/// A value is the next word, or the text after the first `=`. A value that looks like an option (a dash, then
/// a letter or a second dash) needs the `=`. Bytes stay as they are.
/// @throws InputError with one line: the option, its value, and what would be right; for an option of another
/// step, the name of that step.
std::optional<Options> parse_options(Step step, int argc, const char* const* argv);

/// Whether some step has an option of this name, as `--prompt`.
bool is_option(std::string_view name);
/// Whether `step` has it.
bool is_option(Step step, std::string_view name);

/// The refusal of an option that is none of `known`, with a hint at the nearest of them.
InputError unknown_option(std::string_view name, std::span<const std::string_view> known,
                          std::string_view program);

/// @throws InputError for the first of `words` that gives a value to one of `flags`, as `--help=1`.
void refuse_values(std::span<const char* const> words, std::initializer_list<std::string_view> flags);

/// The name of the program that `path`, the first word of a command line, starts.
std::string program_name(std::string_view path);

/// Whether a value follows this option, as in `--prompt TEXT`; not for a flag, and not for what is no option.
bool takes_value(std::string_view name);

/// The shipped model's folder: next to an installed binary, else in the source tree it was built from.
/// @param self  the link to this binary; without it (no /proc) only that source tree is looked at
/// @throws InputError naming the places that were looked at.
std::filesystem::path shipped_model_folder(const std::filesystem::path& self = "/proc/self/exe");

/// The first of `places` that holds a config.json.
/// @throws InputError naming the places, if none does.
std::filesystem::path first_model_folder(std::span<const std::filesystem::path> places);

}  // namespace kvcache
