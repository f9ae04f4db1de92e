/// @file
/// See http_connection.h. Read `read_more` to `dispatch` first. Everything runs on the server's thread, so
/// nothing here is locked.
#include "common/server/http_connection.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <exception>

#include "common/server/http_request.h"
#include "fmt/chrono.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
/// How a chunked body may end, and the least that follows: an empty line. Boost.Beast 1.74 fails an assertion
/// of its own if it is given kLastChunk alone and one byte more the next time.
constexpr std::string_view kLastChunk = "0\r\n", kEmptyLine = "\r\n";

/// A TCP option that Asio has no name for.
template <int Name>
using TcpOption = asio::detail::socket_option::integer<IPPROTO_TCP, Name>;

/// Whether the client keeps the connection after the answer. Several fields count as one list (RFC 9110
/// section 5.3); Boost.Beast's keep_alive() reads the first alone.
bool keeps_connection(const HttpMessage& message) {
  bool keeps = message.version() >= 11;
  const auto [field, end] = message.equal_range(http::field::connection);
  for (auto at = field; at != end; ++at) {
    http::token_list options(at->value());
    if (options.exists("close")) return false;
    keeps = keeps || options.exists("keep-alive");
  }
  return keeps;
}

/// Bytes of the header and the trailers, which Boost.Beast keeps in one list of fields. Spaces around values
/// are not counted.
std::size_t bytes_of_fields(const HttpMessage& message) {
  std::size_t bytes = message.method_string().size() + message.target().size();
  for (const auto& field : message)
    bytes += field.name_string().size() + field.value().size() + 3;  // a colon, \r\n
  return bytes;
}

/// Whether a chunked body is at its last chunk, before the trailers. The line end of the chunk before it may
/// not be parsed yet.
bool is_at_last_chunk(std::string_view unparsed) {
  if (unparsed.starts_with("\r\n")) unparsed.remove_prefix(2);
  const std::size_t after = unparsed.find_first_not_of('0');
  const bool has_whole_line = unparsed.find("\r\n") != std::string_view::npos;
  return after > 0 && has_whole_line && (unparsed[after] == '\r' || unparsed[after] == ';');
}

std::string reason_of(unsigned status) {
  const auto reason = http::obsolete_reason(http::int_to_status(status));
  return {reason.data(), reason.size()};
}

}  // namespace

/// A request and its answer. Its handler may keep it longer than the connection lives.
class HttpConnection::Exchange final : public HttpExchange {
 public:
  Exchange(HttpRequest request, HttpConnection& connection)
      : HttpExchange(std::move(request)), connection_(&connection) {}

  void answer(const HttpAnswer& answer) override {
    if (connection_ == nullptr) return;
    connection_->close_if_it_throws([&] {
      connection_->write_head(answer.status, answer,
                              fmt::format("Content-Length: {}\r\n", answer.body.size()));
      if (request().method != "HEAD") connection_->write(answer.body);
      finish();
    });
  }

  void begin_stream(const std::string& content_type) override {
    if (connection_ == nullptr) return;
    HttpAnswer head;
    head.content_type = content_type;
    chunked_ = connection_->version_ >= 11;  // in HTTP/1.0 the answer ends with the connection
    if (!chunked_) connection_->keep_ = false;
    connection_->close_if_it_throws(
        [&] { connection_->write_head(200, head, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""); });
  }

  void send(std::string_view part) override {
    if (connection_ == nullptr || part.empty()) return;
    connection_->close_if_it_throws([&] {
      connection_->write(chunked_ ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : std::string(part));
    });
    was_behind_ = was_behind_ || is_behind();
  }

  void end_stream() override {
    if (connection_ == nullptr) return;
    connection_->close_if_it_throws([&] {
      if (chunked_) connection_->write("0\r\n\r\n");
      finish();
    });
  }

  bool is_behind() const override {
    return connection_ != nullptr && connection_->unsent_.size() > connection_->owner_.limits().unsent_bytes;
  }
  void on_caught_up(std::function<void()> listener) override { caught_up_ = std::move(listener); }

  void on_departure(std::function<void()> listener) override { listener_ = std::move(listener); }
  bool departed() const override { return departed_; }

  /// Called when bytes were sent: tells the handler if its client has caught up.
  void look_whether_caught_up() {
    if (connection_ != nullptr && !is_behind() && std::exchange(was_behind_, false) && caught_up_)
      caught_up_();
  }

  /// Ends the exchange: the client has all of its answer, or has left.
  void detach(bool answered) {
    connection_ = nullptr;
    departed_ = !answered;
    caught_up_ = nullptr;
    const std::function<void()> listener = std::move(listener_);
    if (departed_ && listener) listener();
  }

 private:
  void finish() {
    HttpConnection& connection = *std::exchange(connection_, nullptr);
    connection.answered_ = true;
    if (connection.sending_.empty()) connection.all_sent();
  }

  HttpConnection* connection_;  // nullptr: the exchange is over
  std::function<void()> listener_, caught_up_;
  bool chunked_ = false, departed_ = false, was_behind_ = false;
};

HttpConnection::HttpConnection(Socket socket, HttpConnectionOwner& owner)
    : socket_(std::move(socket)), owner_(owner), timer_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);  // a small event must not wait for the next
  // A client whose machine vanishes sends nothing: it is probed after 30 s, and given up after one minute.
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  socket_.set_option(TcpOption<TCP_KEEPIDLE>(30), ignored);
  socket_.set_option(TcpOption<TCP_KEEPINTVL>(10), ignored);
  socket_.set_option(TcpOption<TCP_KEEPCNT>(3), ignored);
}

/// A part that is lost, as without memory, would leave the client waiting, or with bytes missing: rather, its
/// connection ends.
template <typename Work>
void HttpConnection::close_if_it_throws(const Work& work) {
  const auto self = shared_from_this();
  try {
    work();
  } catch (...) {
    close();
    throw;
  }
}

void HttpConnection::start() {
  close_if_it_throws([this] {
    become_idle();
    read_more();
  });
}

void HttpConnection::become_idle() {
  state_ = State::idle;
  waiting_since_ = std::chrono::steady_clock::now();
  set_deadline(owner_.limits().idle);
}

std::optional<std::chrono::steady_clock::time_point> HttpConnection::waiting_since() const {
  error_code error;
  const bool may_be_whole = state_ == State::idle && socket_.available(error) > 0;  // but not read yet
  if (state_ == State::answering || may_be_whole) return std::nullopt;
  return waiting_since_;
}

void HttpConnection::turn_away() {
  close_if_it_throws([this] {
    HttpAnswer answer = error_answer(503, "the server has no free connection; try again later");
    answer.headers.emplace_back("Retry-After", "1");
    refuse(answer);
  });
}

void HttpConnection::give_way() {
  // A client that was answered knows that its connection may end; a new one may be about to ask.
  if (state_ == State::idle && given_ == 0) return turn_away();
  close();
}

// Reading

void HttpConnection::read_more() {
  if (state_ == State::closed) return;
  socket_.async_read_some(asio::buffer(incoming_),
                          [self = shared_from_this()](error_code error, std::size_t bytes) {
                            if (self->state_ == State::closed) return;
                            if (error) return self->close();
                            self->close_if_it_throws([&] {
                              self->unparsed_.append(self->incoming_.data(), bytes);
                              self->take_input();
                              self->read_more();
                            });
                          });
}

void HttpConnection::take_input() {
  switch (state_) {
    case State::idle:
    case State::reading:
      return parse();
    case State::answering:  // input of the next request waits, up to a limit
      if (unparsed_.size() > owner_.limits().header_bytes + owner_.limits().body_bytes) close();
      return;
    case State::leaving:
    case State::closed:
      unparsed_.clear();
  }
}

void HttpConnection::parse() {
  if (state_ == State::idle) unparsed_.erase(0, unparsed_.find_first_not_of("\r\n"));  // RFC 9112 section 2.2
  if (unparsed_.empty()) return;
  if (state_ == State::idle) {
    state_ = State::reading;
    set_deadline(owner_.limits().read);
    parser_.emplace();  // not eager: it stops behind the header
    parser_->header_limit(static_cast<std::uint32_t>(owner_.limits().header_bytes));
    parser_->body_limit(owner_.limits().body_bytes);
    continue_sent_ = false;
    parsed_bytes_ = 0;
  }
  if (!parser_->is_header_done()) {
    // The parser's own limit counts the request line and the fields separately; this one counts both.
    const std::size_t end = unparsed_.find("\r\n\r\n");
    const std::size_t bytes = end == std::string::npos ? unparsed_.size() : end + 4;
    if (parsed_bytes_ + bytes > owner_.limits().header_bytes) return refuse_long_header();
  }
  while (!unparsed_.empty() && !parser_->is_done()) {
    const bool is_in_chunks = parser_->is_header_done() && parser_->chunked();
    const bool may_be_the_end = is_in_chunks && unparsed_.starts_with(kLastChunk);
    if (may_be_the_end && unparsed_.size() < kLastChunk.size() + kEmptyLine.size()) break;
    error_code error;
    const std::size_t taken = parser_->put(asio::buffer(unparsed_), error);
    unparsed_.erase(0, taken);
    parsed_bytes_ += taken;
    if (error && error != http::error::need_more) return refuse_parse_error(error);
    if (parser_->is_header_done() && !request_) take_header();
    if (error || taken == 0) break;  // asked again without more input, it may fail that assertion, too
  }
  if (parser_->is_done()) {
    if (bytes_of_fields(parser_->get()) > owner_.limits().header_bytes) return refuse_long_header();
    return dispatch();
  }
  if (unparsed_.size() > owner_.limits().header_bytes) {
    if (is_at_last_chunk(unparsed_)) return refuse_long_header();
    return refuse(error_answer(400, "a chunk of the body begins with too long a line"));
  }
  if (parser_->is_header_done()) send_continue();
}

/// Answers a client that asks, with Expect: 100-continue, before it sends a large body.
void HttpConnection::send_continue() {
  const auto& head = parser_->get();
  if (continue_sent_ || head.version() < 11 ||
      !boost::beast::iequals(head[http::field::expect], "100-continue"))
    return;
  continue_sent_ = true;
  write(kContinue);
}

/// Takes what the header says before the body is parsed: Boost.Beast adds the fields of a trailer to those of
/// the header, and a trailer must not change who asks (RFC 9110 section 6.5.1).
void HttpConnection::take_header() {
  const HttpMessage& message = parser_->get();
  version_ = message.version();
  keep_ = keeps_connection(message);
  fault_ = why_no_request(message);
  request_ = request_of(message);
  parser_->eager(true);
}

void HttpConnection::dispatch() {
  HttpRequest request = *std::exchange(request_, std::nullopt);
  request.body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::answering;
  clear_deadline();
  answered_ = false;
  const auto exchange = std::make_shared<Exchange>(std::move(request), *this);
  exchange_ = exchange;
  if (fault_.empty()) return owner_.handle(exchange);
  keep_ = false;  // where the next request begins is unknown
  exchange->answer(error_answer(400, fault_));
}

void HttpConnection::refuse_long_header() {
  refuse(
      error_answer(431, fmt::format("the {} longer than {} bytes",
                                    parser_->is_header_done() ? "header and the trailers are" : "header is",
                                    owner_.limits().header_bytes)));
}

void HttpConnection::refuse_parse_error(const error_code& error) {
  if (error == http::error::header_limit) return refuse_long_header();
  if (error == http::error::body_limit)
    return refuse(
        error_answer(413, fmt::format("the body is longer than {} bytes", owner_.limits().body_bytes)));
  // The parser would call the version bad, in front of which it looks for CR LF.
  const std::size_t line_end = parser_->is_header_done() ? std::string::npos : unparsed_.find('\n');
  const bool bare = line_end != std::string::npos && (line_end == 0 || unparsed_[line_end - 1] != '\r');
  const std::string_view line = std::string_view(unparsed_).substr(0, line_end);
  const bool unversioned = error == http::error::bad_target && std::ranges::count(line, ' ') == 1;
  refuse(error_answer(
      400, "this is not an HTTP request: " + (bare          ? "a line ends with LF alone, instead of CR LF"
                                              : unversioned ? "the request line ends without an HTTP version"
                                                            : error.message())));
}

/// Answers something that is no request, and leaves: where the next request begins is unknown.
void HttpConnection::refuse(const HttpAnswer& answer) {
  keep_ = false;
  write_head(answer.status, answer, fmt::format("Content-Length: {}\r\n", answer.body.size()));
  write(answer.body);
  leave();
}

// Writing

void HttpConnection::write_head(unsigned status, const HttpAnswer& answer, std::string_view framing) {
  owner_.count_response(status);
  keep_ = keep_ && owner_.keeps_connections();
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %T} GMT\r\nContent-Type: {}\r\nCache-Control: no-store\r\n{}",
      status, reason_of(status), fmt::gmtime(std::time(nullptr)), answer.content_type, framing);
  for (const auto& [name, value] : answer.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (!keep_) {
    head += "Connection: close\r\n";
  } else if (version_ < 11) {
    head += "Connection: keep-alive\r\n";
  }
  write(head + "\r\n");
}

void HttpConnection::write(std::string_view bytes) {
  unsent_ += bytes;
  if (sending_.empty()) send_more();
}

void HttpConnection::send_more() {
  sending_ = std::exchange(unsent_, {});
  sent_ = 0;
  send_rest();
}

void HttpConnection::send_rest() {
  if (state_ == State::answering) await_taking();
  socket_.async_write_some(asio::buffer(sending_) + sent_,
                           [self = shared_from_this()](error_code error, std::size_t bytes) {
                             if (self->state_ == State::closed) return;
                             if (error) return self->close();
                             self->given_ += bytes;
                             self->sent_ += bytes;
                             self->close_if_it_throws([&] { self->go_on_sending(); });
                           });
}

void HttpConnection::go_on_sending() {
  if (sent_ < sending_.size()) return send_rest();
  sending_.clear();
  if (unsent_.empty()) {
    all_sent();
  } else {
    send_more();
  }
  if (exchange_) exchange_->look_whether_caught_up();
}

/// Called when nothing is left to send for now.
void HttpConnection::all_sent() {
  if (state_ == State::leaving) {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    set_deadline(owner_.limits().linger);
  }
  if (state_ != State::answering) return;
  clear_deadline();
  if (!answered_) return;
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->detach(/*answered=*/true);
  owner_.exchange_ended(/*answered=*/true);
  if (state_ == State::closed) return;  // the server has ended
  if (!keep_) return leave();
  become_idle();
  parse();  // the next request may be here already
}

/// Leaves the client: sends the rest, and closes when the client has read it or `linger` is over. A socket
/// that is closed with unread input would make the system throw the answer away.
void HttpConnection::leave() {
  state_ = State::leaving;
  waiting_since_ = std::chrono::steady_clock::now();
  parser_.reset();
  unparsed_.clear();
  await_taking();
  if (sending_.empty()) all_sent();
}

/// Closes the connection of a client that has left or is given up.
void HttpConnection::close() {
  if (state_ == State::closed) return;
  const auto self = shared_from_this();
  state_ = State::closed;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  owner_.connection_ended(self);  // first: what follows may throw
  if (const auto exchange = std::exchange(exchange_, nullptr)) {
    exchange->detach(/*answered=*/false);
    owner_.exchange_ended(/*answered=*/false);
  }
}

// Time

void HttpConnection::set_deadline(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    // A handler that is already queued cannot be cancelled: look whether the deadline was moved.
    const bool moved = self->timer_.expiry() > asio::steady_timer::clock_type::now();
    if (error || moved || self->state_ == State::closed) return;
    self->close_if_it_throws([&] { self->deadline_passed(); });
  });
}

void HttpConnection::clear_deadline() {
  timer_.expires_at(asio::steady_timer::time_point::max());
}

/// Gives the client HttpLimits::write to take some of what is being sent.
void HttpConnection::await_taking() {
  taken_ = taken();
  set_deadline(owner_.limits().write);
}

/// Bytes that have arrived at the client: those that the system has taken less those that it still holds. For
/// a slow client these may be many.
std::uint64_t HttpConnection::taken() {
  int waiting = 0;  // bytes that the system still holds
  const bool is_known = ioctl(socket_.native_handle(), SIOCOUTQ, &waiting) == 0;
  return is_known ? given_ - static_cast<std::uint64_t>(waiting) : taken_;
}

void HttpConnection::deadline_passed() {
  if (state_ == State::reading)
    return refuse(error_answer(408, fmt::format("the request did not end within {} s",
                                                static_cast<double>(owner_.limits().read.count()) / 1000)));
  if (!sending_.empty() && taken() != taken_) return await_taking();
  close();
}

}  // namespace kvcache
