/// @file
/// See serve.h.
#include "common/server/serve.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "common/base/error.h"
#include "common/server/generation_server.h"
#include "common/server/trace_log.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Connections beside those of requests: for clients that ask for the status, or are answered 429.
constexpr std::int64_t kOtherConnections = 256;

/// Asks the system for `count` open files: each connection is one, and a shell often gives a program only
/// 1,024 although more are allowed. If fewer are allowed, the last clients to come wait for a connection.
void allow_open_files(rlim_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// How long the end waits for the current pass.
constexpr std::chrono::milliseconds kLastPass{300};

/// The model's name for clients: that of its folder, or of its shape.
std::string name_of_model(const Options& options) {
  if (!options.random_weights.empty()) return "random:" + options.random_weights;
  return served_name(options.model.empty() ? shipped_model_folder() : std::filesystem::path(options.model));
}

}  // namespace

std::string served_name(const std::filesystem::path& folder) {
  std::error_code error;  // a folder that cannot be looked at is refused when the model is read
  std::filesystem::path whole = std::filesystem::weakly_canonical(folder, error);
  if (error) whole = folder;
  if (!whole.has_filename()) whole = whole.parent_path();  // "models/" that does not exist
  constexpr std::string_view prefix = "models--", separator = "--";
  const std::filesystem::path snapshots = whole.parent_path();
  std::string name = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !name.starts_with(prefix) || name == prefix)
    return whole.filename().string();
  name.erase(0, prefix.size());
  if (const std::size_t end = name.find(separator); end != std::string::npos)
    name.replace(end, separator.size(), 1, '/');
  return name;
}

namespace {

int run_server(Step step, const Options& options, const MakeCache& make_cache) {
  GenerationServerSettings settings;
  const std::int64_t max_requests = options.max_sequences + options.max_waiting;
  settings.http.connections = static_cast<std::size_t>(max_requests + kOtherConnections);
  allow_open_files(static_cast<rlim_t>(2 * settings.http.connections));
  settings.host = options.host;
  settings.port = options.port;
  const std::string name = name_of_model(options);
  std::optional<TraceLog> log;
  GenerationServer server(settings, name);
  if (!options.log_trace.empty()) {
    check_traces_replace_nothing(options);
    log.emplace(options.log_trace, options.block_size, options.salt);
  }

  Program program = load_program(step, options);
  const Cache cache = make_cache(program);
  const Tokenizer* const tokenizer = program.tokenizer ? &*program.tokenizer : nullptr;
  Engine engine(*program.model, *cache.manager, *cache.store, tokenizer,
                {.max_batch_tokens = rows_of_a_pass(program),
                 .max_sequences = options.max_sequences,
                 .preempt_every = options.debug_preempt_every});
  if (!program.pinned_prefix.empty()) engine.pin(program.pinned_prefix);
  if (log) {
    log->replace_file();
    program.notes.push_back(
        fmt::format("logging a trace of blocks of {} tokens to {}; replay it with ./steps replay {} "
                    "--trace-block {} --max-sequences {} --max-batch-tokens {}",
                    options.block_size, options.log_trace, options.log_trace, options.block_size,
                    options.max_sequences, rows_of_a_pass(program)));
  }
  print_notes(program, cache);
  EngineThread thread(engine, max_requests);
  const ServedModel model{name,
                          &program.model->config(),
                          tokenizer,
                          cache.manager.get(),
                          options.max_sequences,
                          !options.no_special_tokens};
  const auto tell_address = [&] {
    const std::string line = fmt::format("listening on {}\n", server.address());
    if (write(STDOUT_FILENO, line.data(), line.size()) != std::ssize(line))
      fmt::print(stderr, "note: stdout cannot be written ({}); {}", std::strerror(errno), line);
  };
  server.serve(thread, model, tell_address, log ? &*log : nullptr);
  // All clients are answered. A pass may take long, and no client waits for it any more.
  if (!thread.wait_until_idle(kLastPass)) std::_Exit(0);
  return 0;
}

}  // namespace

int serve(Step step, const Options& options, const MakeCache& make_cache) {
  // The standard library and Boost have an error each for a thread that the system refuses.
  const auto refuse_if_no_thread = [](int error, const std::string& message) {
    if (error != EAGAIN) return;
    throw RunError(fmt::format(
        "the system gives this program no more threads ({}); a server needs five, and those of "
        "--threads: end other programs of this user, or raise its limits (ulimit -u; -v, since each "
        "thread has a stack)",
        message));
  };
  try {
    return run_server(step, options, make_cache);
  } catch (const std::system_error& error) {
    refuse_if_no_thread(error.code().value(), error.code().message());
    throw;
  } catch (const boost::system::system_error& error) {
    refuse_if_no_thread(error.code().value(), error.code().message());
    throw;
  }
}

}  // namespace kvcache
