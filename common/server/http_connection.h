/// @file
/// One client of the server: reads its requests, one after the other, and writes the answers. A read is
/// always pending, also while an answer is in the making, so that a client that goes away is noticed at once.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/server/http_server.h"

namespace kvcache {

class HttpConnection;

/// What connections need of their server.
class HttpConnectionOwner {
 public:
  /// What a client can take.
  virtual const HttpLimits& limits() const = 0;
  /// A request has come.
  virtual void handle(const std::shared_ptr<HttpExchange>& exchange) = 0;
  /// Whether a connection may go on after an answer.
  virtual bool keeps_connections() const = 0;
  /// An answer begins.
  virtual void count_response(unsigned status) = 0;
  /// The connection's exchange is over: answered, or its client is gone.
  virtual void exchange_ended(bool answered) = 0;
  /// The connection is closed and needs its owner no more.
  virtual void connection_ended(const std::shared_ptr<HttpConnection>& connection) = 0;

 protected:
  ~HttpConnectionOwner() = default;
};

/// A client's connection.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  /// Accepted, and not used yet.
  using Socket = boost::asio::ip::tcp::socket;

  /// @param owner  outlives the connection's work
  HttpConnection(Socket socket, HttpConnectionOwner& owner);

  /// Waits for requests.
  void start();
  /// Says that there are too many connections, and leaves.
  void turn_away();
  /// Leaves at once.
  void close();
  /// Whether there is a request that is not answered to the end.
  bool is_busy() const { return exchange_ != nullptr; }
  /// Whether all that is still awaited of the client is that it leaves.
  bool is_being_left() const { return state_ == State::leaving; }
  /// Since when the client owes something: a whole request since it was accepted or last answered, however
  /// much of it is here, or its leaving. Nothing while a request is answered or waits to be looked at.
  std::optional<std::chrono::steady_clock::time_point> waiting_since() const;

 private:
  class Exchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  /// What is awaited of the client.
  enum class State : std::uint8_t {
    idle,       ///< to begin a request
    reading,    ///< to end it
    answering,  ///< to take the answer, which may not be there yet
    leaving,    ///< to read why it is being left, and to leave itself
    closed,
  };

  void read_more();
  void take_input();
  void parse();
  void send_continue();
  void dispatch();
  void refuse(const HttpAnswer& answer);
  void refuse_long_header();
  void refuse_parse_error(const boost::system::error_code& error);

  void write_head(unsigned status, const HttpAnswer& answer, std::string_view framing);
  void write(std::string_view bytes);
  void send_more();
  void send_rest();
  void go_on_sending();
  void all_sent();
  void leave();

  void become_idle();
  void await_taking();
  std::uint64_t taken();
  void set_deadline(std::chrono::milliseconds time);
  void clear_deadline();
  void deadline_passed();

  Socket socket_;
  HttpConnectionOwner& owner_;
  boost::asio::steady_timer timer_;
  State state_ = State::idle;
  std::chrono::steady_clock::time_point waiting_since_;  // where it is

  std::array<char, 8192> incoming_;  // of the pending read
  std::string unparsed_;             // input that no parser has taken
  std::optional<Parser> parser_;     // of the request that is being read
  bool continue_sent_ = false;

  std::shared_ptr<Exchange> exchange_;  // the request that is being answered
  unsigned version_ = 11;               // of it
  bool keep_ = false;                   // the connection, after it
  bool answered_ = false;               // all of the answer is in the two below, or sent

  std::string sending_, unsent_;  // on its way; not yet
  std::size_t sent_ = 0;          // of the first: the system has it
  std::uint64_t given_ = 0;       // bytes that the system has had, of all answers
  std::uint64_t taken_ = 0;       // of them by the client, when it was looked at last
};

}  // namespace kvcache
