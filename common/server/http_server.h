/// @file
/// HTTP on one thread: connections, their limits and timeouts, and answers whole or in parts. All limits are
/// in http_limits.h; http_connection.cpp enforces them. SIGTERM and SIGINT arrive here (`on_signal`), and
/// connections end here (`end_when_answered`, `end`). A handler (generation_server.h) makes the answers;
/// models are unknown here. Described in docs/serving.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/server/http_limits.h"

namespace kvcache {

/// One whole request.
struct HttpRequest {
  std::string method;       ///< "GET", ...
  std::string path;         ///< without a query
  std::string body;         ///< empty: none
  std::string coding;       ///< the body's Content-Encoding; empty: none
  std::string host;         ///< of Host, without the port; empty: the client does not say
  bool cross_site = false;  ///< a browser says that a page of another site asks
};

/// One whole answer.
struct HttpAnswer {
  unsigned status = 200;                                          ///< HTTP status code
  std::string body;                                               ///< not sent to HEAD
  std::string content_type = "application/json";                  ///< of the body
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< further headers
};

/// An error in the form that all errors have: {"error": {...}}.
/// @param field  of the request that is wrong; empty: no single field
nlohmann::ordered_json error_json(unsigned status, const std::string& message, const std::string& field = "");
/// The answer with that error.
HttpAnswer error_answer(unsigned status, const std::string& message, const std::string& field = "");

/// One request and the way to answer it: with `answer`; or with `begin_stream`, any number of `send`, and
/// `end_stream`. Only for the server's thread. Once the client is gone, all of these do nothing.
class HttpExchange {
 public:
  /// @param request  to be answered
  explicit HttpExchange(HttpRequest request) : request_(std::move(request)) {}
  virtual ~HttpExchange() = default;

  /// The request.
  const HttpRequest& request() const { return request_; }
  /// Moves the body out of the request.
  std::string take_body() { return std::move(request_.body); }

  /// Sends a whole answer.
  virtual void answer(const HttpAnswer& answer) = 0;
  /// Begins an answer in parts: sends its head.
  virtual void begin_stream(const std::string& content_type) = 0;
  /// Sends a part.
  virtual void send(std::string_view part) = 0;
  /// Ends an answer in parts.
  virtual void end_stream() = 0;
  /// Whether more than HttpLimits::unsent_bytes of the stream wait for the client. Then the sender should
  /// join parts, so that what waits grows slowly.
  virtual bool is_behind() const = 0;
  /// Calls `listener` whenever a client that was behind has caught up.
  virtual void on_caught_up(std::function<void()> listener) = 0;
  /// Calls `listener` once if the client leaves before it has all of its answer, or does not take what is
  /// sent.
  virtual void on_departure(std::function<void()> listener) = 0;
  /// Whether the client has left so.
  virtual bool departed() const = 0;

 private:
  HttpRequest request_;
};

/// The counts of a server.
struct HttpCounts {
  std::size_t connections = 0;                 ///< open now
  std::map<unsigned, std::int64_t> responses;  ///< by status
  std::int64_t departures = 0;                 ///< clients that left before the end of their answer
};

/// The server. It has one thread of its own, on which its handler and all listeners run, too.
class HttpServer {
 public:
  /// Answers a request.
  using Handler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

  /// Takes the port; connections wait until `start`. Requests of web pages of others are answered 403
  /// (pages_of_others.h).
  /// @param host  an address of this machine or a name of it; an IPv6 address may stand in brackets
  /// @param port  0: any that is free
  /// @throws InputError for a host that is not this machine's; RunError for a port that is taken or not
  /// allowed.
  HttpServer(const std::string& host, int port, const HttpLimits& limits);
  /// Ends all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Answers from now on.
  void start(Handler handler);
  /// "http://127.0.0.1:5000"
  std::string address() const;

  /// Runs `work` on the server's thread. Any thread may call it while the server exists.
  void post(std::function<void()> work);
  /// Runs `work` on the server's thread once the returned object is released, which needs no memory. Any
  /// thread may release it while the server exists.
  std::shared_ptr<void> run_when_released(std::function<void()> work);
  /// Runs `work` on the server's thread after `time`.
  void post_after(std::chrono::milliseconds time, std::function<void()> work);
  /// Runs `work` on the server's thread at the first SIGTERM or SIGINT. The second such signal ends the
  /// process.
  void on_signal(std::function<void()> work);
  /// Ends the server as soon as every request that has come is answered; connections are not kept. Only for
  /// the server's thread.
  void end_when_answered();
  /// Ends the server now. Any thread may call it.
  void end();
  /// Waits until the server has ended.
  void wait();
  /// The counts so far. Only for the server's thread.
  HttpCounts counts() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace kvcache
