// Feeds: the bytes of a client on one connection, whole and then in segments. The first byte gives the
// segments' length.
//
// Holds: the connection ends with its client, every answer begins as HTTP does, and the same requests are
// understood however the bytes are cut. (One exception: a header that never ends may be refused for a wrong
// line or awaited, because Boost.Beast looks for the end in strides.)
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <vector>

#include "common/server/http_connection.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

namespace {

/// A server of one connection, driven by hand.
struct OneClient final : HttpConnectionOwner {
  HttpLimits the_limits;
  std::vector<std::string> requests;
  int responses = 0, ended = 0;

  const HttpLimits& limits() const override { return the_limits; }
  void handle(const std::shared_ptr<HttpExchange>& exchange) override {
    const HttpRequest& request = exchange->request();
    requests.push_back(request.method + " " + request.path + " " + request.host + " " + request.body);
    exchange->answer({});
  }
  bool keeps_connections() const override { return true; }
  void count_response(unsigned) override { ++responses; }
  void exchange_ended(bool) override {}
  void connection_ended(const std::shared_ptr<HttpConnection>&) override { ++ended; }

  /// Sends `bytes` in segments of `length` and leaves.
  void serve(std::string_view bytes, std::size_t length) {
    boost::asio::io_context io;
    int ends[2];
    hold(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
    HttpConnection::Socket socket(io, boost::asio::ip::tcp::v4(), ends[0]);
    std::make_shared<HttpConnection>(std::move(socket), *this)->start();
    std::string answers;
    const auto step = [&] {
      io.restart();
      io.poll();
      char buffer[4096];
      for (ssize_t n; (n = ::recv(ends[1], buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
        answers.append(buffer, static_cast<std::size_t>(n));
    };
    for (std::size_t at = 0; at < bytes.size(); at += length, step())
      (void)::send(ends[1], bytes.data() + at, std::min(length, bytes.size() - at), MSG_NOSIGNAL);
    ::shutdown(ends[1], SHUT_WR);
    for (int n = 0; n < 100 && ended == 0; ++n) step();
    ::close(ends[1]);
    hold(ended == 1, "the connection ends with its client");
    hold(answers.empty() || answers.starts_with("HTTP/1.1 "), "answers are HTTP");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const std::size_t length = 1 + input.byte() % 64;
  const std::string_view bytes = input.rest().substr(0, 4096);
  OneClient whole, cut;
  whole.serve(bytes, 4096);
  cut.serve(bytes, length);
  hold(whole.requests == cut.requests, "segments change no request");
  for (const OneClient* client : {&whole, &cut})
    hold(client->responses <= static_cast<int>(client->requests.size()) + 1, "a connection is refused once");
  return 0;
}
