/// @file
/// See serve.h.
#include "common/serving/serve.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/serving/generation_server.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Requests that wait to be admitted, at most; one more is told to come again.
constexpr std::int64_t kMaxQueued = 128;
/// In the end it is waited for the pass that is running for so long.
constexpr std::chrono::milliseconds kLastPass{300};

/// What clients call the model: the last part of its folder, or the shape's name.
std::string served_name(const Options& options) {
  if (!options.random_weights.empty()) return "random:" + options.random_weights;
  const std::filesystem::path folder = options.model.empty() ? shipped_model_folder() : options.model;
  return std::filesystem::weakly_canonical(folder).filename().string();
}

}  // namespace

int serve(Step step, const Options& options, const MakeCache& make_cache) {
  GenerationServerSettings settings;
  settings.host = options.host;
  settings.port = options.port;
  const std::string name = served_name(options);
  GenerationServer server(settings, name);

  Program program = load_program(step, options);
  const Cache cache = make_cache(program);
  const Tokenizer* const tokenizer = program.tokenizer ? &*program.tokenizer : nullptr;
  Engine engine(*program.model, *cache.manager, *cache.store, tokenizer,
                {.max_batch_tokens = options.max_batch_tokens,
                 .max_sequences = options.max_sequences,
                 .preempt_every = options.debug_preempt_every});
  if (!program.pinned_prefix.empty()) engine.pin(program.pinned_prefix);
  EngineThread thread(engine, kMaxQueued);
  const ServedModel model{name,
                          &program.model->config(),
                          tokenizer,
                          cache.manager.get(),
                          options.max_sequences,
                          !options.no_special_tokens};
  server.serve(thread, model, [&] {
    fmt::print("listening on {}\n", server.address());
    std::fflush(stdout);
  });
  // Everybody is answered. A pass may take long, and nobody waits for it any more.
  if (!thread.wait_until_idle(kLastPass)) std::_Exit(0);
  return 0;
}

}  // namespace kvcache
