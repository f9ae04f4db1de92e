/// @file
/// HTTP on one thread: connections, their limits and timeouts, and answers whole or in parts. It knows
/// nothing of models; what is answered is a handler's (generation_server.h). Described in docs/serving.md.
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

namespace kvcache {

/// What a client can take of a server, at most.
struct HttpLimits {
  std::size_t header_bytes = 16 << 10;      ///< of one request
  std::size_t body_bytes = 1 << 20;         ///< of one request
  std::size_t unsent_bytes = 64 << 10;      ///< of a stream that wait, before its sender is to join parts
  int socket_bytes = 64 << 10;              ///< of an answer, that wait in the system
  std::size_t connections = 256;            ///< open at a time
  std::chrono::milliseconds read{10'000};   ///< from the first byte of a request to its last
  std::chrono::milliseconds idle{20'000};   ///< between requests
  std::chrono::milliseconds write{20'000};  ///< for a client to take any of what is ready
  std::chrono::milliseconds linger{1'000};  ///< for a client to read why it is being left
};

/// One request, whole.
struct HttpRequest {
  std::string method;       ///< "GET", ...
  std::string path;         ///< without a query
  std::string body;         ///< empty: none
  std::string coding;       ///< of the body, as Content-Encoding has it; empty: none
  std::string host;         ///< whom the client believes to ask, without the port; empty: it does not say
  bool cross_site = false;  ///< a browser says that a page of another site asks
};

/// A whole answer.
struct HttpAnswer {
  unsigned status = 200;                                          ///< of HTTP
  std::string body;                                               ///< not sent to HEAD
  std::string content_type = "application/json";                  ///< of the body
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< more of them
};

/// What went wrong, in the one form of all errors: {"error": {...}}.
/// @param field  of the request that is wrong; empty: none
nlohmann::ordered_json error_json(unsigned status, const std::string& message, const std::string& field = "");
/// The answer that tells it.
HttpAnswer error_answer(unsigned status, const std::string& message, const std::string& field = "");

/// One request and the way to answer it: with `answer`, or with `begin_stream`, any number of `send` and
/// `end_stream`. To be used on the server's thread alone. Harmless once the client is gone.
class HttpExchange {
 public:
  /// @param request  that is answered
  explicit HttpExchange(HttpRequest request) : request_(std::move(request)) {}
  virtual ~HttpExchange() = default;

  /// What is asked.
  const HttpRequest& request() const { return request_; }
  /// The request's body, for who needs it elsewhere.
  std::string take_body() { return std::move(request_.body); }

  /// Sends a whole answer.
  virtual void answer(const HttpAnswer& answer) = 0;
  /// Sends the head of an answer in parts.
  virtual void begin_stream(const std::string& content_type) = 0;
  /// Sends a part.
  virtual void send(std::string_view part) = 0;
  /// There are no more parts.
  virtual void end_stream() = 0;
  /// Whether more of the stream waits for the client than its limit: who sends should join parts, so that
  /// what waits grows no faster than it must.
  virtual bool is_behind() const = 0;
  /// `listener` is called whenever a client that was behind is so no more.
  virtual void on_caught_up(std::function<void()> listener) = 0;
  /// `listener` is called, once, if the client goes away before it has all of its answer, or does not take
  /// what is sent.
  virtual void on_departure(std::function<void()> listener) = 0;
  /// Whether it has.
  virtual bool departed() const = 0;

 private:
  HttpRequest request_;
};

/// What a server has done and does.
struct HttpCounts {
  std::size_t connections = 0;                 ///< open now
  std::map<unsigned, std::int64_t> responses;  ///< by status
  std::int64_t departures = 0;                 ///< of clients that were not answered to the end
};

/// The server: all of it runs on a thread of its own, and so do its handler and its listeners.
class HttpServer {
 public:
  /// Called with each request.
  using Handler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

  /// Takes the port; connections wait until `start`. Pages of other sites that a browser shows cannot ask for
  /// anything to be done; and where only this machine is listened to, they cannot read anything either, by
  /// giving its address a name of their own: such a Host is answered 403.
  /// @param host  an address of this machine or a name of it
  /// @param port  0: any that is free
  /// @throws InputError for a host that is not this machine's, RunError for a port that cannot be had.
  HttpServer(const std::string& host, int port, const HttpLimits& limits);
  /// Ends all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Answers from now on.
  void start(Handler handler);
  /// "http://127.0.0.1:5000"
  std::string address() const;

  /// Runs `work` on the server's thread. From any thread, while the server exists.
  void post(std::function<void()> work);
  /// Does so later.
  void post_after(std::chrono::milliseconds time, std::function<void()> work);
  /// Runs `work` on the server's thread at the first SIGTERM or SIGINT. The second ends the process, as such
  /// a signal does.
  void on_signal(std::function<void()> work);
  /// Ends the server as soon as every request that has come is answered; connections are not kept. From the
  /// server's thread.
  void end_when_answered();
  /// Ends the server now. From any thread.
  void end();
  /// Waits until the server has ended.
  void wait();
  /// From the server's thread.
  HttpCounts counts() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace kvcache
