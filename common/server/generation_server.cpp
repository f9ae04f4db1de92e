/// @file
/// See generation_server.h. Read `handle` first.
#include "common/server/generation_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include "common/base/error.h"
#include "common/cli/print.h"
#include "common/server/live_page.h"
#include "common/server/metrics.h"
#include "common/server/openai.h"
#include "common/server/request_fields.h"
#include "common/tokenizer/text_budget.h"
#include "common/tokenizer/utf8.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

/// The longest that GET /health waits for a pass; a pass of a large model may take longer.
constexpr milliseconds kStatusWait{500};
/// The end of a server. kCancelling: from cancelling the last requests until clients are told so even if the
/// engine, in a long pass, has not ended them. kLastAnswers: from then until everything must have ended.
constexpr milliseconds kCancelling{600}, kLastAnswers{300};

using Clock = std::chrono::system_clock;
std::int64_t seconds_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpAnswer json_answer(const Json& json, unsigned status = 200) {
  HttpAnswer answer;
  answer.status = status;
  answer.body = text_of(json) + "\n";
  return answer;
}

HttpAnswer later(HttpAnswer answer, std::int64_t seconds = 1) {
  answer.headers.emplace_back("Retry-After", std::to_string(seconds));
  return answer;
}

}  // namespace

/// What a reader has made of a body: one of both, or nothing yet.
struct GenerationServer::ReadBody {
  std::optional<AskedGeneration> asked;
  std::exception_ptr failure;
};

/// An answer in the making: turns the engine's events of a request into what its client is sent.
class GenerationServer::Answering {
 public:
  /// @param logged  nullptr: the request is not logged
  Answering(Exchange exchange, AskedGeneration& asked, std::unique_ptr<LoggedRequest> logged)
      : exchange_(std::move(exchange)),
        logged_(std::move(logged)),
        form_(std::move(asked.form)),
        stream_(asked.stream),
        outputs_(static_cast<std::size_t>(asked.request.samples)) {}
  /// Must be called once `self` owns this object.
  void listen_to(const std::shared_ptr<Answering>& self) {
    exchange_->on_caught_up([weak = std::weak_ptr(self)] {
      if (const auto answering = weak.lock()) answering->send_waiting();
    });
  }

  LoggedRequest* logged() const { return logged_.get(); }

  void hear(const GenerationEvent& event) {
    if (done_ || exchange_->departed()) return;
    if (!begun_ && ends_early(event)) return refuse(event);
    GeneratedOutput& output = outputs_[static_cast<std::size_t>(event.sample)];
    try {
      output.finish_reason = event.finish_reason;
      stream_ ? send(event) : collect(event, output);
    } catch (...) {  // the answer has lost a part: nobody holds the exchange any more, so its connection ends
      done_ = true;
      waiting_.clear();
      exchange_.reset();
      throw;
    }
  }
  /// Ends the answer as cancelled, without waiting for the engine.
  void cancel() {
    for (std::int64_t sample = 0; sample < std::ssize(outputs_); ++sample) {
      if (outputs_[static_cast<std::size_t>(sample)].finish_reason.empty())
        hear({.sample = sample, .finish_reason = "cancelled"});
    }
    if (!done_ && !exchange_->departed()) end_stream();
  }

 private:
  /// An error or a cancellation: if nothing was sent yet, an HTTP status can tell it.
  static bool ends_early(const GenerationEvent& event) {
    return event.finish_reason == "error" || event.finish_reason == "cancelled";
  }
  void refuse(const GenerationEvent& event) {
    done_ = true;
    if (event.finish_reason == "cancelled")
      return exchange_->answer(later(error_answer(503, "the server is shutting down")));
    exchange_->answer(event.error.empty() ? error_answer(503, "the engine has failed")
                                          : error_answer(500, event.error));
  }

  /// Sends each event as it comes. For a client that is behind, the events of a sample become one.
  void send(const GenerationEvent& event) {
    if (!std::exchange(begun_, true)) exchange_->begin_stream("text/event-stream");
    add_to_waiting(event);
    if (event.summary) return end_stream();
    if (!exchange_->is_behind()) send_waiting();
  }
  void add_to_waiting(const GenerationEvent& event) {
    auto part = std::ranges::find(waiting_, event.sample, &AnswerPart::sample);
    if (part == waiting_.end()) part = waiting_.insert(part, {.sample = event.sample});
    if (event.id) part->ids.push_back(*event.id);
    part->text += event.text;
    part->finish_reason = event.finish_reason;
    part->error = event.error;
    part->summary = event.summary;
    if (event.summary) std::rotate(part, part + 1, waiting_.end());  // the part with the summary is sent last
  }
  void send_waiting() {
    for (const AnswerPart& part : std::exchange(waiting_, {})) {
      std::vector<Json> events = form_->events(part);
      if (!part.error.empty()) events.front().update(error_json(500, part.error));
      for (const Json& told : events) exchange_->send("data: " + text_of(told) + "\n\n");
    }
  }
  void end_stream() {
    done_ = true;
    send_waiting();
    exchange_->send("data: [DONE]\n\n");
    exchange_->end_stream();
  }

  void collect(const GenerationEvent& event, GeneratedOutput& output) {
    if (event.id) output.ids.push_back(*event.id);
    output.text += event.text;
    if (!event.summary) return;
    done_ = true;
    exchange_->answer(json_answer(form_->whole(outputs_, *event.summary)));
  }

  Exchange exchange_;
  std::unique_ptr<LoggedRequest> logged_;
  std::unique_ptr<AnswerForm> form_;
  bool stream_, begun_ = false, done_ = false;
  std::vector<GeneratedOutput> outputs_;  // [samples]
  std::vector<AnswerPart> waiting_;       // held back until the client catches up; one per sample
};

GenerationServer::GenerationServer(const GenerationServerSettings& settings, const std::string& model_name)
    : settings_(settings),
      model_name_(model_name),
      // One each: where the system gives a pool one thread of two, its constructor never ends (Boost 1.74).
      readers_{std::make_unique<boost::asio::thread_pool>(1), std::make_unique<boost::asio::thread_pool>(1)},
      looker_(std::make_unique<boost::asio::thread_pool>(1)),
      http_(settings.host, settings.port, settings.http) {
  http_.start([this](const Exchange& exchange) { handle(exchange); });
  http_.on_signal([this] {
    if (engine_ == nullptr) std::_Exit(0);  // the model is still being loaded: nothing has to be ended
    end();
  });
}

GenerationServer::~GenerationServer() {
  http_.end();
  wait();
}

/// Waits until all threads have ended. Bodies that are still unread are given up.
void GenerationServer::wait() {
  http_.wait();
  stop_reading_.request_stop();
  for (auto* worker : {&readers_[0], &readers_[1], &looker_}) worker->reset();  // with work that uses http_
}

void GenerationServer::serve(EngineThread& engine, const ServedModel& model,
                             const std::function<void()>& on_ready, TraceLog* log) {
  http_.post([&] {
    engine_ = &engine;
    log_ = log;
    model_ = model;
    model_.stop = stop_reading_.get_token();
    on_ready();
  });
  wait();
  if (!failure_.empty()) throw RunError("the engine failed: " + failure_);
}

void GenerationServer::end() {
  http_.post([this] {
    if (std::exchange(ending_, true)) return;
    if (engine_ != nullptr) engine_->close();
    for (const UnreadRequest& request : unread_.take_all()) request.exchange->answer(not_serving());
    stop_reading_.request_stop();  // the engine would not take what is still being read
    http_.end_when_answered();
    http_.post_after(settings_.finish, [this] {
      if (engine_ != nullptr) engine_->cancel_all();
    });
    http_.post_after(settings_.finish + kCancelling, [this] {
      for (const auto& weak : std::exchange(answering_, {})) {
        if (const auto answering = weak.lock()) answering->cancel();
      }
    });
    http_.post_after(settings_.finish + kCancelling + kLastAnswers, [this] { http_.end(); });
  });
}

// What each address answers

void GenerationServer::handle(const Exchange& exchange) {
  struct Route {
    std::string path;
    const char* method;
    std::function<void()> answer;
  };
  const auto read_own = [this](std::string_view body) { return read_generate_request(body, model_); };
  const auto read_openai = [this, number = ++requests_](std::string_view body) {
    return read_completion_request(body, model_, fmt::format("cmpl-{}", number), seconds_of(Clock::now()));
  };
  const std::int64_t started = seconds_of(created_);
  const Route routes[] = {
      {"/", "GET", [&] { exchange->answer(live_page()); }},
      {"/generate", "POST", [&] { answer_generation(exchange, read_own); }},
      {"/health", "GET", [&] { answer_health(exchange); }},
      {"/metrics", "GET", [&] { answer_metrics(exchange); }},
      {"/state", "GET", [&] { answer_state(exchange); }},
      {"/v1/completions", "POST", [&] { answer_generation(exchange, read_openai); }},
      {"/v1/models", "GET", [&] { exchange->answer(json_answer(list_of_models(model_name_, started))); }},
      {"/v1/models/" + model_name_, "GET",
       [&] { exchange->answer(json_answer(described_model(model_name_, started))); }},
  };
  const HttpRequest& request = exchange->request();
  std::vector<std::string> paths;
  for (const Route& route : routes) {
    paths.push_back(route.path);
    if (request.path != route.path) continue;
    const bool reads = std::string_view(route.method) == "GET";
    if (request.method == route.method || (reads && request.method == "HEAD")) return route.answer();
    HttpAnswer answer = error_answer(
        405, fmt::format("{} takes {}, not {}", request.path, route.method, shortened(request.method)));
    answer.headers.emplace_back("Allow", reads ? "GET, HEAD" : route.method);
    return exchange->answer(answer);
  }
  exchange->answer(error_answer(
      404, fmt::format("there is no {}; there are {}", shortened(request.path), fmt::join(paths, ", "))));
}

HttpAnswer GenerationServer::not_serving() const {
  if (!failure_.empty()) return error_answer(503, "the engine has failed: " + failure_);
  return later(error_answer(503, ending_ ? "the server is shutting down" : "the model is being loaded"));
}

/// Lets the request wait for a reader, or answers 429 if there are too many requests.
void GenerationServer::answer_generation(const Exchange& exchange, Read read) {
  if (engine_ == nullptr || ending_ || !failure_.empty()) return exchange->answer(not_serving());
  const std::int64_t line = requests();
  if (line >= engine_->max_requests() ||
      !unread_.add({exchange, exchange->take_body(), std::move(read), Engine::Clock::now()}))
    return refuse_one_too_many(exchange);
  pace_.note_taken(line, Pace::Clock::now());
  exchange->on_departure([this, left = exchange.get()] { unread_.drop(*left); });
  read_next(UnreadRequests::Reader::of_all);
  read_next(UnreadRequests::Reader::of_short);
}

void GenerationServer::refuse_one_too_many(const Exchange& exchange) {
  const std::int64_t seconds = pace_.retry_after(requests(), Pace::Clock::now());
  exchange->answer(
      later(error_answer(429, "the queue of waiting requests is full; try again later"), seconds));
}

/// Requests that are still to be read, so that the engine does not have them yet.
std::int64_t GenerationServer::requests_to_read() const {
  return unread_.size() + std::ssize(reading_);
}

/// All requests: to be read, waiting or running.
std::int64_t GenerationServer::requests() const {
  return requests_to_read() + engine_->requests();
}

/// Gives an idle reader its next request.
void GenerationServer::read_next(UnreadRequests::Reader reader) {
  if (reading_.contains(reader)) return;
  std::optional<UnreadRequest> next = unread_.take(reader);
  if (!next) return;
  const Exchange exchange = std::move(next->exchange);
  try {
    const auto outcome = std::make_shared<ReadBody>();
    auto when_read = http_.run_when_released([this, reader, exchange, outcome, arrived = next->arrived] {
      if (!outcome->asked && !outcome->failure) return;  // no reader got it: answered below
      reading_.erase(reader);
      read_next(reader);  // first: what follows may throw
      take_read(exchange, *outcome, arrived);
    });
    auto work = [read = std::move(next->read), body = std::move(next->body), outcome,
                 when_read = std::move(when_read)] {
      try {
        outcome->asked = read(body);
      } catch (...) {  // the server's thread tells it: making an answer needs memory
        outcome->failure = std::current_exception();
      }
    };
    reading_.insert(reader);
    boost::asio::post(*readers_[static_cast<std::size_t>(reader)], std::move(work));
  } catch (const std::exception& error) {
    reading_.erase(reader);
    read_next(reader);  // first: what follows may throw
    exchange->answer(error_answer(500, words_of(error)));
  }
}

/// Submits the request that a reader has made of a body, or answers why there is none.
void GenerationServer::take_read(const Exchange& exchange, ReadBody& body,
                                 Engine::Clock::time_point arrived) {
  try {
    if (body.failure) std::rethrow_exception(body.failure);
  } catch (const StoppedByRequest&) {
    return exchange->answer(not_serving());  // the server is shutting down
  } catch (const RequestError& error) {
    return exchange->answer(error_answer(error.status, error.what(), error.field));
  } catch (const std::exception& error) {
    return exchange->answer(error_answer(500, words_of(error)));
  }
  submit(exchange, *std::move(body.asked), arrived);
}

void GenerationServer::submit(const Exchange& exchange, AskedGeneration asked,
                              Engine::Clock::time_point arrived) {
  if (exchange->departed()) return;
  std::unique_ptr<LoggedRequest> logged;
  if (log_ != nullptr) logged = std::make_unique<LoggedRequest>(log_->arrived(asked.request, arrived));
  const auto answering = std::make_shared<Answering>(exchange, asked, std::move(logged));
  answering->listen_to(answering);
  if (answering_.size() == answering_.capacity())  // not each time: there may be thousands
    std::erase_if(answering_, [](const auto& other) { return other.expired(); });
  answering_.push_back(answering);
  // The engine's thread calls this; the event is handled on the server's thread.
  const auto tell = [this, answering](const GenerationEvent& event) {
    http_.post([this, answering, event] {
      // First, so that whoever has an answer finds its line.
      if (answering->logged() != nullptr) log_->hear(event, *answering->logged());
      answering->hear(event);
      if (event.finish_reason == "error" && event.error.empty())
        note_failure(engine_->status(milliseconds(0)).failure);
      if (!event.finish_reason.empty()) ++outputs_[event.finish_reason];
      if (event.summary) pace_.note_end(Pace::Clock::now());
    });
  };
  std::variant<GenerationId, EngineThread::Refusal> submitted;
  try {
    submitted = engine_->submit(std::move(asked.request), tell, arrived);
  } catch (const InputError& error) {
    return exchange->answer(error_answer(400, error.what()));
  }
  if (const auto* refusal = std::get_if<EngineThread::Refusal>(&submitted)) {
    note_failure(engine_->status(milliseconds(0)).failure);  // the engine may have failed just now
    if (*refusal == EngineThread::Refusal::closed) return exchange->answer(not_serving());
    return refuse_one_too_many(exchange);
  }
  exchange->on_departure([this, id = std::get<GenerationId>(submitted)] { engine_->cancel(id); });
}

/// Remembers the engine's failure, and prints it once.
void GenerationServer::note_failure(const std::string& failure) {
  if (failure.empty() || !failure_.empty()) return;
  failure_ = failure;
  std::fputs(fmt::format("error: the engine has failed: {}\n", failure_).c_str(), stderr);
}

void GenerationServer::answer_health(const Exchange& exchange) {
  Json health = {{"status", "loading"}, {"model", model_name_}, {"uptime_s", uptime_s()}};
  if (engine_ == nullptr) return exchange->answer(later(json_answer(health, 503)));
  with_status([this, exchange, health](const EngineStatus& status) mutable {
    health["blocks"] = json_of(status.blocks);
    health["kv_memory"] = json_of(status.memory);  // step 2 has no blocks: look here
    health["running"] = status.running_count;
    health["waiting"] = status.waiting;
    health["counters"] = json_of(status.counters);
    health["status"] = !status.failure.empty() ? "failed" : ending_ ? "stopping" : "ok";
    if (!status.failure.empty()) health["failure"] = status.failure;
    exchange->answer(json_answer(health, health["status"] == "ok" ? 200 : 503));
  });
}

void GenerationServer::answer_metrics(const Exchange& exchange) {
  const auto answer = [this, exchange](const EngineStatus* status) {
    HttpAnswer answer;
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = metrics_text({uptime_s(), http_.counts(), outputs_, status});
    exchange->answer(answer);
  };
  if (engine_ == nullptr) return answer(nullptr);
  with_status([answer](const EngineStatus& status) { answer(&status); });
}

void GenerationServer::answer_state(const Exchange& exchange) {
  if (engine_ == nullptr) return exchange->answer(not_serving());
  with_status(
      [this, exchange](const EngineStatus& status) {
        const PageContext context{model_name_, uptime_s(), model_.tokenizer != nullptr, model_.max_sequences,
                                  ending_};
        exchange->answer(json_answer(page_state(status, context)));
      },
      /*with_cache=*/true);
}

// The engine's status

/// Calls `use` with a status that is made after this call; not at all if the server ends before.
void GenerationServer::with_status(std::function<void(const EngineStatus&)> use, bool with_cache) {
  status_users_.push_back(std::move(use));
  cache_is_wanted_ = cache_is_wanted_ || with_cache;
  if (!status_is_coming_) ask_for_status();
}

/// Asks once for all that wait for a status. Whoever comes while a status is on its way waits for the next.
void GenerationServer::ask_for_status() {
  const auto status = std::make_shared<std::optional<EngineStatus>>();
  auto when_known = http_.run_when_released([this, status, users = std::exchange(status_users_, {})] {
    status_is_coming_ = false;
    if (!status_users_.empty()) ask_for_status();  // first: what follows may throw
    if (!*status) throw std::bad_alloc();          // what no user holds any more is forgotten
    note_failure((*status)->failure);
    (*status)->waiting += requests_to_read();
    for (const auto& use : users) use(**status);
  });
  status_is_coming_ = true;
  auto look = [engine = engine_, with_cache = std::exchange(cache_is_wanted_, false), status,
               when_known = std::move(when_known)] {
    try {
      *status = engine->status(kStatusWait, with_cache);
    } catch (const std::bad_alloc&) {
      // None: the server's thread sees it.
    }
  };
  boost::asio::post(*looker_, std::move(look));
}

double GenerationServer::uptime_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - up_since_).count();
}

}  // namespace kvcache
