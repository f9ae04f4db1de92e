/// @file
/// An engine behind HTTP: what each address answers, and that a request is cancelled when its client leaves.
/// SIGTERM or SIGINT ends the server in order: `GenerationServer::end`.
/// The answer 429 is sent here; pace.h computes its Retry-After. Worker threads read requests and ask the
/// engine for its status, so the server's own thread never waits. Described in docs/serving.md.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "common/engine/engine_thread.h"
#include "common/server/generate_request.h"
#include "common/server/http_limits.h"
#include "common/server/http_server.h"
#include "common/server/pace.h"
#include "common/server/trace_log.h"
#include "common/server/unread_requests.h"

namespace boost::asio {
class thread_pool;
}

namespace kvcache {

/// The settings of a server.
struct GenerationServerSettings {
  std::string host = "127.0.0.1";           ///< where to listen
  int port = 5000;                          ///< 0: any that is free
  HttpLimits http;                          ///< limits of each client
  std::chrono::milliseconds finish{8'000};  ///< time for requests to end once the server is told to end
};

/// The server of one model. It listens from its construction on, and answers that it is loading until
/// `serve`.
class GenerationServer {
 public:
  /// @param model_name  as clients know it
  /// @throws InputError, RunError as HttpServer does.
  GenerationServer(const GenerationServerSettings& settings, const std::string& model_name);
  ~GenerationServer();
  GenerationServer(const GenerationServer&) = delete;
  GenerationServer& operator=(const GenerationServer&) = delete;

  /// "http://127.0.0.1:5000"
  std::string address() const { return http_.address(); }
  /// Serves until SIGTERM, SIGINT or `end`, and until the last answers have gone out. The engine may then
  /// still be in a pass.
  /// @param engine    ends before this server does, since its listeners use the server
  /// @param on_ready  called when requests are taken
  /// @param log       where requests that have ended are logged; outlives this server. nullptr: nowhere
  /// @throws RunError if the engine has failed.
  void serve(EngineThread& engine, const ServedModel& model, const std::function<void()>& on_ready,
             TraceLog* log = nullptr);
  /// Takes no more requests, lets those in progress end for a while, cancels the rest, and ends the server.
  /// Any thread may call it.
  void end();

 private:
  class Answering;
  struct ReadBody;
  using Exchange = std::shared_ptr<HttpExchange>;
  using Read = std::function<AskedGeneration(std::string_view body)>;

  void wait();
  void handle(const Exchange& exchange);
  void answer_generation(const Exchange& exchange, Read read);
  void refuse_one_too_many(const Exchange& exchange);
  void read_next(UnreadRequests::Reader reader);
  void take_read(const Exchange& exchange, ReadBody& body, Engine::Clock::time_point arrived);
  std::int64_t requests_to_read() const;
  std::int64_t requests() const;
  void submit(const Exchange& exchange, AskedGeneration asked, Engine::Clock::time_point arrived);
  void answer_health(const Exchange& exchange);
  void answer_metrics(const Exchange& exchange);
  void answer_state(const Exchange& exchange);
  void with_status(std::function<void(const EngineStatus&)> use, bool with_cache = false);
  void ask_for_status();
  void note_failure(const std::string& failure);
  HttpAnswer not_serving() const;
  double uptime_s() const;

  const GenerationServerSettings settings_;
  const std::string model_name_;
  const std::chrono::system_clock::time_point created_ = std::chrono::system_clock::now();
  const std::chrono::steady_clock::time_point up_since_ = std::chrono::steady_clock::now();
  // From here on for the server's thread alone. Readers use model_ too, which does not change any more then.
  EngineThread* engine_ = nullptr;  // nullptr: the model is being loaded
  ServedModel model_;
  TraceLog* log_ = nullptr;
  bool ending_ = false;
  std::string failure_;
  std::uint64_t requests_ = 0;
  std::map<std::string, std::int64_t> outputs_;  // how many have ended, by reason
  UnreadRequests unread_;
  std::set<UnreadRequests::Reader> reading_;  // the readers at work
  Pace pace_;
  std::vector<std::function<void(const EngineStatus&)>> status_users_;
  bool status_is_coming_ = false, cache_is_wanted_ = false;

  std::vector<std::weak_ptr<Answering>> answering_;  // all open answers, and some ended ones

  std::stop_source stop_reading_;
  // Reading a long prompt takes time, and so does waiting for the engine's status.
  std::array<std::unique_ptr<boost::asio::thread_pool>, 2> readers_;  // by UnreadRequests::Reader
  std::unique_ptr<boost::asio::thread_pool> looker_;
  HttpServer http_;  // declared last: its thread uses all of the above
};

}  // namespace kvcache
