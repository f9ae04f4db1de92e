/// @file
/// See http_server.h.
#include "common/server/http_server.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/string.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_set>

#include "common/base/error.h"
#include "common/server/http_connection.h"
#include "common/server/pages_of_others.h"
#include "common/tokenizer/utf8.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// "::1" for "[::1]", as a URL has it; every other text as it is.
std::string without_brackets(const std::string& host) {
  if (!host.starts_with('[') || !host.ends_with(']')) return host;
  const std::string inner = host.substr(1, host.size() - 2);
  error_code is_no_address;
  asio::ip::make_address_v6(inner, is_no_address);
  return is_no_address ? host : inner;
}

/// @throws InputError if `host` is no address or name.
tcp::endpoint endpoint_of(asio::io_context& io, const std::string& host, int port) {
  error_code error;
  const auto found =
      tcp::resolver(io).resolve(without_brackets(host), std::to_string(port), tcp::resolver::passive, error);
  if (!error && !found.empty()) return found.begin()->endpoint();
  throw InputError(fmt::format(
      "--host \"{}\" is no address of this machine ({}); 127.0.0.1 is one, and 0.0.0.0 stands for "
      "all that it has",
      host, error.message()));
}

/// @throws InputError, RunError as the server's constructor.
tcp::acceptor listen_at(asio::io_context& io, const std::string& host, int port, const HttpLimits& limits) {
  const tcp::endpoint endpoint = endpoint_of(io, host, port);
  tcp::acceptor acceptor(io, endpoint.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  // Connections inherit this size. So what a slow client has not read waits in this program, where it is
  // counted; the system would take megabytes.
  acceptor.set_option(asio::socket_base::send_buffer_size(limits.socket_bytes));
  error_code error;
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    throw RunError(fmt::format("--port {} is taken; give another, or 0 for any that is free", port));
  if (error == asio::error::access_denied)
    throw RunError(fmt::format("--port {} is not allowed for this user; give one from 1024 on", port));
  if (error)
    throw InputError(
        fmt::format("--host \"{}\": {}; give an address of this machine", host, error.message()));
  return acceptor;
}

/// Whether a body with this Content-Encoding is not compressed.
bool is_plain(const std::string& coding) {
  return coding.empty() || boost::beast::iequals(coding, "identity");
}

std::string url_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return fmt::format("http://{}:{}", endpoint.address().is_v6() ? "[" + host + "]" : host, endpoint.port());
}

}  // namespace

nlohmann::ordered_json error_json(unsigned status, const std::string& message, const std::string& field) {
  const char* const type = status == 429  ? "rate_limit_error"
                           : status < 500 ? "invalid_request_error"
                                          : "server_error";
  const nlohmann::ordered_json named =
      field.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(field);
  return {{"error",
           {{"message", message}, {"type", type}, {"field", named}, {"param", named}, {"code", nullptr}}}};
}

HttpAnswer error_answer(unsigned status, const std::string& message, const std::string& field) {
  HttpAnswer answer;
  answer.status = status;
  answer.body = error_json(status, message, field)
                    .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                "\n";
  return answer;
}

class HttpServer::Implementation final : public HttpConnectionOwner {
 public:
  Implementation(const std::string& host, int port, const HttpLimits& limits)
      : limits_(limits),
        acceptor_(listen_at(io_, host, port, limits)),
        address_{host, acceptor_.local_endpoint().address(), url_of(acceptor_.local_endpoint())},
        accept_again_(io_),
        signals_(io_) {}
  ~Implementation() {
    end();
    wait();
  }

  void start(Handler handler) {
    handler_ = std::move(handler);
    accept();
    thread_ = std::thread([this] { run(); });
  }
  std::string address() const { return address_.url; }

  void post(std::function<void()> work) { asio::post(io_, std::move(work)); }
  /// A timer that is never due: its end cancels the wait, whose handler has its memory already.
  std::shared_ptr<void> run_when_released(std::function<void()> work) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, asio::steady_timer::time_point::max());
    timer->async_wait([work = std::move(work)](error_code) { work(); });
    return timer;
  }
  void post_after(std::chrono::milliseconds time, std::function<void()> work) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, time);
    timer->async_wait([timer, work = std::move(work)](error_code error) {
      if (!error) work();
    });
  }
  void on_signal(std::function<void()> work) {
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    signals_.async_wait([this, work = std::move(work)](error_code error, int) {
      if (error) return;
      work();
      // The second signal may have come already: wait for it at once.
      signals_.async_wait([this](error_code error, int signal) {
        if (error) return;
        signals_.clear();  // from here on signals have their default effect
        std::raise(signal);
        std::_Exit(128 + signal);  // the first process of a container: for it the default is to go on
      });
    });
  }

  void end_when_answered() {
    ending_ = true;
    end_if_answered();
  }
  void end() {
    post([this] { end_now(); });
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  HttpCounts counts() const {
    HttpCounts counts = counts_;
    counts.connections = connections_.size();
    return counts;
  }

  // For connections.
  const HttpLimits& limits() const override { return limits_; }
  bool keeps_connections() const override { return !ending_; }
  void count_response(unsigned status) override { ++counts_.responses[status]; }
  void handle(const std::shared_ptr<HttpExchange>& exchange) override {
    const HttpRequest& request = exchange->request();
    if (const std::string why = why_kept_out(request, address_); !why.empty())
      return exchange->answer(error_answer(403, why));
    if (!request.body.empty() && !is_plain(request.coding)) {
      HttpAnswer answer =
          error_answer(415, fmt::format("Content-Encoding is {}; send the body without an encoding",
                                        shortened(request.coding)));
      answer.headers.emplace_back("Accept-Encoding", "identity");
      return exchange->answer(answer);
    }
    try {
      handler_(exchange);
    } catch (const std::exception& error) {
      exchange->answer(error_answer(500, words_of(error)));
      close_forgotten();
    }
  }
  void exchange_ended(bool answered) override {
    if (!answered) ++counts_.departures;
    // Posted, since the connection is still at work.
    if (ending_) post([this] { end_if_answered(); });
  }
  void connection_ended(const std::shared_ptr<HttpConnection>& connection) override {
    connections_.erase(connection);
  }

 private:
  static constexpr std::chrono::milliseconds kMoment{100};

  /// An exception in the work for one connection must not end the others. Memory may be short: nothing here
  /// needs any.
  void run() {
    while (!io_.stopped()) {
      try {
        close_forgotten();
        if (accepting_.use_count() == 1) {  // the exception has ended the accepting
          io_.run_for(kMoment);
          if (acceptor_.is_open()) accept();
        }
        io_.run();
      } catch (const std::exception& error) {
        for (const char* part : {"note: the server goes on after this: ", words_of(error), "\n"})
          std::fputs(part, stderr);
      }
    }
  }

  void accept() {
    acceptor_.async_accept([this, accepting = accepting_](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      // The system wants a free file even where nobody connects.
      if (error == asio::error::no_descriptors && somebody_connects()) {
        if (const auto longest = longest_waiting(/*being_left=*/false)) {
          longest->close();
          return accept();
        }
      }
      if (error) return accept_later();
      accept();
      take(std::move(socket));
    });
  }
  bool somebody_connects() {
    pollfd waiting{acceptor_.native_handle(), POLLIN, 0};
    return poll(&waiting, 1, 0) == 1;
  }
  /// Accepts again in a moment: for example, no file descriptor is free now.
  void accept_later() {
    accept_again_.expires_after(kMoment);
    accept_again_.async_wait([this, accepting = accepting_](error_code error) {
      if (!error) accept();
    });
  }
  /// Closes the connections whose requests nobody will answer: an exception lost them.
  void close_forgotten() {
    const auto is_forgotten = [](const auto& connection) { return connection->is_forgotten(); };
    for (auto found = connections_.end();
         (found = std::ranges::find_if(connections_, is_forgotten)) != connections_.end();)
      std::shared_ptr(*found)->close();
  }
  /// Takes a new connection. Connections that are being left have places of their own, as many as the others.
  void take(tcp::socket socket) {
    const bool has_room = connections_.size() < limits_.connections || make_room();
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), *this);
    connections_.insert(connection);
    connection->start();
    if (!has_room) connection->turn_away();
  }
  /// Looks at all connections, of which there are at least as many as may be. @return whether there is a
  /// place
  bool make_room() {
    const auto left = static_cast<std::size_t>(std::ranges::count_if(
        connections_, [](const auto& connection) { return connection->is_being_left(); }));
    const bool is_full = connections_.size() - left >= limits_.connections;
    const auto leaver = left >= limits_.connections ? longest_waiting(/*being_left=*/true) : nullptr;
    if (leaver) leaver->close();
    if (!is_full) return true;
    const auto longest = longest_waiting(/*being_left=*/false);
    if (longest) longest->give_way();
    return longest != nullptr;
  }

  /// The connection that must make room for one more. Its client has no whole request here and can connect
  /// again.
  /// @param being_left  among the connections that are being left, or among the others
  /// @return nullptr: none
  std::shared_ptr<HttpConnection> longest_waiting(bool being_left) {
    std::shared_ptr<HttpConnection> longest;
    auto first = std::chrono::steady_clock::time_point::max();
    for (const auto& connection : connections_) {
      const auto since = connection->waiting_since();
      if (connection->is_being_left() != being_left || !since || *since >= first) continue;
      first = *since;
      longest = connection;
    }
    return longest;
  }

  void end_if_answered() {
    if (std::ranges::none_of(connections_, [](const auto& connection) { return connection->is_busy(); }))
      end_now();
  }
  void end_now() {
    ending_ = false;  // no exchange that ends now needs to end the server again
    error_code ignored;
    acceptor_.close(ignored);
    accept_again_.cancel();
    signals_.cancel(ignored);
    work_.reset();
    io_.stop();
    for (const auto& connection : std::exchange(connections_, {})) connection->close();
  }

  const HttpLimits limits_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  tcp::acceptor acceptor_;
  const ServerAddress address_;
  asio::steady_timer accept_again_;
  /// Held, too, by the handler that accepts, or will accept again.
  const std::shared_ptr<bool> accepting_ = std::make_shared<bool>(true);
  asio::signal_set signals_;
  Handler handler_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  HttpCounts counts_;
  bool ending_ = false;
  std::thread thread_;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits)
    : implementation_(std::make_unique<Implementation>(host, port, limits)) {}
HttpServer::~HttpServer() = default;
void HttpServer::start(Handler handler) {
  implementation_->start(std::move(handler));
}
std::string HttpServer::address() const {
  return implementation_->address();
}
void HttpServer::post(std::function<void()> work) {
  implementation_->post(std::move(work));
}
std::shared_ptr<void> HttpServer::run_when_released(std::function<void()> work) {
  return implementation_->run_when_released(std::move(work));
}
void HttpServer::post_after(std::chrono::milliseconds time, std::function<void()> work) {
  implementation_->post_after(time, std::move(work));
}
void HttpServer::on_signal(std::function<void()> work) {
  implementation_->on_signal(std::move(work));
}
void HttpServer::end_when_answered() {
  implementation_->end_when_answered();
}
void HttpServer::end() {
  implementation_->end();
}
void HttpServer::wait() {
  implementation_->wait();
}
HttpCounts HttpServer::counts() const {
  return implementation_->counts();
}

}  // namespace kvcache
