/// @file
/// One client of the server: reads its requests, one after the other, and writes the answers. The limits and
/// timeouts of HttpLimits (http_limits.h) are enforced here, with the answers 408, 413 and 431. A read is
/// always pending, even while an answer is in the making, so a client that goes away is noticed at once.
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

#include "common/server/http_limits.h"
#include "common/server/http_server.h"

namespace kvcache {

class HttpConnection;

/// What a connection needs of its server.
class HttpConnectionOwner {
 public:
  /// The limits of a client.
  virtual const HttpLimits& limits() const = 0;
  /// Answers a request.
  virtual void handle(const std::shared_ptr<HttpExchange>& exchange) = 0;
  /// Whether a connection may go on after an answer.
  virtual bool keeps_connections() const = 0;
  /// Counts an answer that begins.
  virtual void count_response(unsigned status) = 0;
  /// The connection's exchange is over: answered, or its client has left.
  virtual void exchange_ended(bool answered) = 0;
  /// The connection is closed and needs its owner no more.
  virtual void connection_ended(const std::shared_ptr<HttpConnection>& connection) = 0;

 protected:
  ~HttpConnectionOwner() = default;
};

/// A client's connection.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  /// An accepted TCP connection.
  using Socket = boost::asio::ip::tcp::socket;

  /// @param owner  outlives the connection's work
  HttpConnection(Socket socket, HttpConnectionOwner& owner);

  /// Waits for requests.
  void start();
  /// Answers that there are too many connections, and leaves. Only before a request has come.
  void turn_away();
  /// Makes room for another connection: turns the client away if it has neither asked nor been answered, or
  /// else closes.
  void give_way();
  /// Closes the connection at once.
  void close();
  /// Whether a request is not answered to its end.
  bool is_busy() const { return exchange_ != nullptr; }
  /// Whether a request is not answered and nobody holds it who could.
  bool is_forgotten() const { return exchange_ != nullptr && !answered_ && exchange_.use_count() == 1; }
  /// Whether the client has only to read the last answer and leave.
  bool is_being_left() const { return state_ == State::leaving; }
  /// Since when the client owes something: a whole request (since it was accepted or last answered, however
  /// much of the request is here), or its leaving. No value while a request is answered or waits to be
  /// parsed.
  std::optional<std::chrono::steady_clock::time_point> waiting_since() const;

 private:
  class Exchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  /// What the client must do next.
  enum class State : std::uint8_t {
    idle,       ///< begin a request
    reading,    ///< end the request
    answering,  ///< take the answer, which may not be there yet
    leaving,    ///< read the last answer and leave
    closed,     ///< nothing
  };

  template <typename Work>
  void close_if_it_throws(const Work& work);

  void read_more();
  void take_input();
  void parse();
  void send_continue();
  void take_header();
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
  std::chrono::steady_clock::time_point waiting_since_;  // of waiting_since()

  std::array<char, 8192> incoming_;     // buffer of the pending read
  std::string unparsed_;                // input that the parser has not taken
  std::optional<Parser> parser_;        // of the request that is being read
  std::optional<HttpRequest> request_;  // what its header says, once the header is read
  std::string fault_;                   // why it is no request; empty: it is one
  std::size_t parsed_bytes_ = 0;        // of the request so far
  bool continue_sent_ = false;

  std::shared_ptr<Exchange> exchange_;  // the request that is being answered
  unsigned version_ = 11;               // HTTP version of the last header, 11 for 1.1
  bool keep_ = false;                   // whether the connection goes on after the answer
  bool answered_ = false;               // all of the answer is in sending_ and unsent_, or sent

  std::string sending_, unsent_;  // being sent; to be sent after it
  std::size_t sent_ = 0;          // bytes of sending_ that the system has taken
  std::uint64_t given_ = 0;       // bytes of all answers that the system has taken
  std::uint64_t taken_ = 0;       // bytes that the client had taken at the last look
};

}  // namespace kvcache
