// HTTP alone, with a handler that knows no model: what is answered, what is refused and how, which
// connections are closed and when, and that the server notices a client that leaves. HT*: cases from reports
// about other servers.
#include "common/server/http_server.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "common/base/error.h"
#include "tests/support/http_client.h"
#include "tests/support/sanitized.h"

namespace kvcache {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::minutes kForEver{2};

/// A number that other threads increase.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool wait_for(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kForEver, [&] { return count_ >= count; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

/// Answers /echo at once, with what it was asked; holds /hold until the test goes on; fails at /fail.
class AnHttpServer : public testing::Test {
 protected:
  void start(const HttpLimits& limits = {}, const std::string& host = "127.0.0.1") {
    server_ = std::make_unique<HttpServer>(host, 0, limits);
    server_->start([this](const std::shared_ptr<HttpExchange>& exchange) { handle(exchange); });
  }
  void TearDown() override {
    held_.clear();
    server_.reset();
  }

  void handle(const std::shared_ptr<HttpExchange>& exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/fail") throw std::runtime_error("it went wrong");
    if (request.path == "/facts") {
      HttpAnswer answer;
      answer.body = fmt::format("{}, coding '{}': {}", request.host, request.coding, request.body);
      return exchange->answer(answer);
    }
    if (request.path != "/hold") {
      HttpAnswer answer;
      answer.body = fmt::format("{} {} {}", request.method, request.path, request.body);
      return exchange->answer(answer);
    }
    exchange->on_departure([this] { departures_.add(); });
    const std::lock_guard lock(mutex_);
    held_.push_back(exchange);
    held_count_.add();
  }
  /// Waits until `count` requests are held, and runs `work` with the last of them on the server's thread.
  template <typename Work>
  void with_held(int count, const Work& work) {
    ASSERT_TRUE(held_count_.wait_for(count));
    std::promise<void> done;
    server_->post([&] {
      const std::lock_guard lock(mutex_);
      work(*held_[static_cast<std::size_t>(count - 1)]);
      done.set_value();
    });
    done.get_future().wait();
  }
  HttpCounts counts() {
    std::promise<HttpCounts> counts;
    server_->post([&] { counts.set_value(server_->counts()); });
    return counts.get_future().get();
  }

  int port() const { return port_of(server_->address()); }
  HttpClient connect() const { return HttpClient(port()); }
  /// The answer to these bytes.
  HttpResponse answer_to(const std::string& bytes) const {
    HttpClient client = connect();
    client.send(bytes);
    return client.read_response();
  }
  /// Sends a piece and lets the server read it before the next one comes.
  void send_alone(HttpClient& client, std::string_view piece) {
    client.send(piece);
    for (int round = 0; round < 3; ++round) counts();
  }
  void wait_for_connections(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + kForEver;
    while (counts().connections != count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(counts().connections, count);
  }
  void expect_alive() const { EXPECT_EQ(connect().get("/echo").status, 200); }

  std::mutex mutex_;
  std::deque<std::shared_ptr<HttpExchange>> held_;
  Counter held_count_, departures_;
  std::unique_ptr<HttpServer> server_;
};

HttpAnswer text(const std::string& body) {
  HttpAnswer answer;
  answer.body = body;
  return answer;
}

TEST_F(AnHttpServer, AnswersRequestsOneAfterTheOther) {
  start();
  HttpClient client = connect();
  for (const char* body : {"", "one", "two"}) {
    client.send_request("POST", "/echo?query", body);
    const HttpResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, fmt::format("POST /echo {}", body));
    EXPECT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_FALSE(response.headers.contains("connection"));
  }
  EXPECT_EQ(counts().responses.at(200), 3);
}

TEST_F(AnHttpServer, DoesNotMindHowRequestsAreCutIntoPieces) {
  start();
  HttpClient client = connect();
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nfir\r\n2;name=value\r\nst\r\n0\r\n\r\n";
  const std::string plain = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nsecond";
  for (const char byte : chunked + plain) client.send({&byte, 1});
  EXPECT_EQ(client.read_response().body, "POST /echo first");
  EXPECT_EQ(client.read_response().body, "POST /echo second");
  client.send(chunked + plain + plain);  // all at once
  EXPECT_EQ(client.read_response().body, "POST /echo first");
  EXPECT_EQ(client.read_response().body, "POST /echo second");
  EXPECT_EQ(client.read_response().body, "POST /echo second");
}

/// Requests on one connection, and the bodies of their answers.
struct Asked {
  std::string bytes;
  std::vector<std::string> answers;
};
std::vector<Asked> requests_of_every_kind() {
  const std::string get = "GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string plain = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody";
  const std::string chunked = "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string extended =
      "3;a=b;c=\"d e\"\r\nfir\r\n2 ;x\r\nst\r\n0;last\r\nX-Trailer: 1\r\nY: 2\r\n\r\n";
  return {{plain, {"POST /echo body"}},
          {chunked + "0\r\n\r\n", {"POST /echo "}},
          {chunked + "00\r\n\r\n", {"POST /echo "}},
          {chunked + "000;x\r\n\r\n", {"POST /echo "}},
          {chunked + "0\r\nX:\r\n\r\n", {"POST /echo "}},
          {chunked + "5\r\n0\r\n\r\n\r\n0\r\n\r\n", {"POST /echo 0\r\n\r\n"}},
          {chunked + "1\r\nx\r\n0\r\n\r\n", {"POST /echo x"}},
          {chunked + extended, {"POST /echo first"}},
          {chunked + "0\r\n\r\n" + get, {"POST /echo ", "GET /echo "}},
          {get + chunked + "0\r\nX: y\r\n\r\n" + plain, {"GET /echo ", "POST /echo ", "POST /echo body"}}};
}

TEST_F(AnHttpServer, TakesRequestsCutInTwoAnywhere) {
  start();
  for (const Asked& asked : requests_of_every_kind()) {
    for (std::size_t cut = 1; cut < asked.bytes.size(); ++cut) {
      HttpClient client = connect();
      send_alone(client, asked.bytes.substr(0, cut));
      client.send(asked.bytes.substr(cut));
      for (const std::string& answer : asked.answers)
        ASSERT_EQ(client.read_response().body, answer) << asked.bytes.substr(0, cut) << "|";
    }
  }
}

TEST_F(AnHttpServer, TakesRequestsAByteAtATime) {
  start();
  for (const Asked& asked : requests_of_every_kind()) {
    HttpClient client = connect();
    for (const char byte : asked.bytes) send_alone(client, {&byte, 1});
    for (const std::string& answer : asked.answers)
      ASSERT_EQ(client.read_response().body, answer) << asked.bytes;
  }
}

TEST_F(AnHttpServer, RefusesAWrongChunkAsSoonAsItIsThere) {
  start();
  for (const char* chunk : {"zz\r\n", "\r\n", "-1\r\n", "0\r\r\n"}) {
    HttpClient client = connect();
    send_alone(client, "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(chunk);
    EXPECT_EQ(client.read_response().status, 400) << chunk;
  }
}

// No assertion of the parsing library ends the program, whatever the bytes.
TEST_F(AnHttpServer, OutlivesRequestsWithAWrongByteAnywhere) {
  start();
  for (const Asked& asked : requests_of_every_kind()) {
    for (std::size_t at = 0; at < asked.bytes.size(); ++at) {
      for (const char wrong : std::string("\r\n0g ;\":\0", 9)) {
        std::string bytes = asked.bytes;
        bytes[at] = wrong;
        HttpClient client = connect();
        client.send(bytes.substr(0, at + 1));
        client.send(bytes.substr(at + 1));
        client.end_sending();
        while (client.read_response().status != 0) {
        }
      }
    }
  }
  expect_alive();
}

TEST_F(AnHttpServer, AnswersInOrderWhatIsAskedBeforeTheAnswer) {
  start();
  HttpClient client = connect();
  client.send_request("POST", "/hold");
  client.send_request("POST", "/echo", "next");
  with_held(1, [](HttpExchange& exchange) { exchange.answer(text("held")); });
  EXPECT_EQ(client.read_response().body, "held");
  EXPECT_EQ(client.read_response().body, "POST /echo next");
}

// A request of the largest size, while the request before it is being answered.
TEST_F(AnHttpServer, KeepsALargeRequestUntilItsTurn) {
  HttpLimits limits;
  start(limits);
  HttpClient client = connect();
  client.send_request("POST", "/hold");
  const std::string body(limits.body_bytes, 'x');
  std::thread sender([&] { client.send_request("POST", "/echo", body); });
  with_held(1, [](HttpExchange& exchange) { exchange.answer(text("held")); });
  sender.join();
  EXPECT_EQ(client.read_response().body, "held");
  EXPECT_EQ(client.read_response().body, "POST /echo " + body);
  EXPECT_EQ(departures_.count(), 0);
}

TEST_F(AnHttpServer, DoesNotMindEmptyLinesBetweenRequests) {
  start();
  HttpClient client = connect();
  for (int round = 0; round < 2; ++round) {
    client.send("\r\n");
    client.send("\r\nGET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n");
    EXPECT_EQ(client.read_response().body, "GET /echo ");
  }
}

TEST_F(AnHttpServer, SaysWhatTimeItIs) {
  start();
  const std::string date = connect().get("/echo").headers.at("date");
  EXPECT_THAT(date,
              testing::MatchesRegex("(Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9][0-9] [A-Z][a-z][a-z] 20[0-9][0-9] "
                                    "[0-9][0-9]:[0-9][0-9]:[0-9][0-9] GMT"));
}

TEST_F(AnHttpServer, ReadsThePathOfATarget) {
  start();
  for (const auto& [target, path] : std::map<std::string, std::string>{{"/my%20model", "/my model"},
                                                                       {"/a%2Fb%c3%a4", "/a/b\u00e4"},
                                                                       {"/100%", "/100%"},
                                                                       {"/%zz%4", "/%zz%4"},
                                                                       {"/%-1", "/%-1"},
                                                                       {"/%+1", "/%+1"},
                                                                       {"/%1", "/%1"},
                                                                       {"/%1g%g1", "/%1g%g1"},
                                                                       {"/%0x%x1", "/%0x%x1"},
                                                                       {"/%%41%", "/%A%"}})
    EXPECT_EQ(connect().get(target).body, fmt::format("GET {} ", path));
}

TEST_F(AnHttpServer, KnowsWhenAConnectionEnds) {
  start();
  for (const char* request :
       {"GET /echo HTTP/1.0\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: x, Close\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: x\r\nConnection: close\r\n\r\n",
        "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n"}) {
    HttpClient client = connect();
    client.send(request);
    const HttpResponse response = client.read_response();
    EXPECT_EQ(response.body, "GET /echo ");
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_TRUE(client.ended_by_server());
  }
  HttpClient old = connect();
  for (const char* fields : {"Connection: keep-alive\r\n", "Connection: x\r\nConnection: Keep-Alive\r\n"}) {
    old.send(fmt::format("GET /echo HTTP/1.0\r\n{}\r\n", fields));
    EXPECT_EQ(old.read_response().headers.at("connection"), "keep-alive");
  }
}

TEST_F(AnHttpServer, AnswersAHeadRequestWithoutABody) {
  start();
  HttpClient client = connect();
  client.send_request("HEAD", "/echo");
  EXPECT_EQ(client.read_response(/*has_body=*/false).headers.at("content-length"), "11");
  EXPECT_EQ(client.get("/echo").body, "GET /echo ");
}

TEST_F(AnHttpServer, WelcomesABodyThatAsksFirst) {
  start();
  HttpClient client = connect();
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 100);
  client.send("body");
  EXPECT_EQ(client.read_response().body, "POST /echo body");
  HttpClient slow = connect();  // is welcomed once, however many pieces its body has
  slow.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(slow.read_response().status, 100);
  send_alone(slow, "bo");
  slow.send("dy");
  EXPECT_EQ(slow.read_response().status, 200);
  HttpClient old = connect();  // does not know of it
  old.send("POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(old.read_response().status, 200);
  // If the body is too long, the server refuses instead.
  HttpClient large = connect();
  large.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(large.read_response().status, 413);
}

TEST_F(AnHttpServer, StreamsInPartsAndKeepsTheConnection) {
  start();
  HttpClient client = connect();
  client.send_request("POST", "/hold");
  with_held(1, [](HttpExchange& exchange) {
    exchange.begin_stream("text/event-stream");
    exchange.send("first");
  });
  const HttpResponse head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(client.read_chunk(), "first") << "before the rest is there";
  with_held(1, [](HttpExchange& exchange) {
    exchange.send("");  // nothing, and not the end
    exchange.send("second");
    exchange.end_stream();
  });
  EXPECT_EQ(client.read_chunk(), "second");
  EXPECT_EQ(client.read_chunk(), std::nullopt);
  EXPECT_EQ(client.get("/echo").status, 200);
}

TEST_F(AnHttpServer, StreamsToAnOldClientUntilTheEndOfTheConnection) {
  start();
  HttpClient client = connect();
  client.send("POST /hold HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
  with_held(1, [](HttpExchange& exchange) {
    exchange.begin_stream("text/event-stream");
    exchange.send("first");
    exchange.send("second");
    exchange.end_stream();
  });
  const HttpResponse response = client.read_response();
  EXPECT_EQ(response.body, "firstsecond");
  EXPECT_EQ(response.headers.at("connection"), "close");
}

TEST_F(AnHttpServer, SaysWhatWentWrongInAHandler) {
  start();
  const HttpResponse response = connect().get("/fail");
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.error().at("message"), "it went wrong");
  expect_alive();
}

// What is refused

TEST_F(AnHttpServer, RefusesWhatIsNotHttp) {
  start();
  for (const char* bytes :
       {"hello\r\n\r\n", "GET /echo\r\n\r\n", "GET /echo HTTP/9.9\r\n\r\n",
        "G ET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nbad header: x\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nno-colon\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    const HttpResponse response = answer_to(bytes);
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_EQ(response.headers.at("connection"), "close") << bytes;
    EXPECT_NE(response.error().at("message"), "") << bytes;
  }
  EXPECT_EQ(answer_to("GET /echo\r\n\r\n").error().at("message"),
            "this is not an HTTP request: the request line ends without an HTTP version");
  for (const char* bytes :
       {"GET /echo HTTP/1.1\nHost: localhost\n\n", "GET /echo HTTP/1.1\r\nHost: localhost\n\r\n"}) {
    const HttpResponse response = answer_to(bytes);
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_EQ(response.error().at("message"),
              "this is not an HTTP request: a line ends with LF alone, instead of CR LF")
        << bytes;
  }
  expect_alive();
}

TEST_F(AnHttpServer, NeedsToBeToldOnceWhomARequestIsFor) {
  start();
  for (const char* hosts :
       {"", "Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nhost: other\r\n"}) {
    const HttpResponse response = answer_to(fmt::format("GET /echo HTTP/1.1\r\n{}\r\n", hosts));
    EXPECT_EQ(response.status, 400) << hosts;
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_NE(response.body.find("Host"), std::string::npos);
  }
  EXPECT_EQ(answer_to("GET /echo HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(AnHttpServer, TakesAWholeAddressForATarget) {
  start();
  for (const auto& [target, path] :
       std::map<std::string, std::string>{{"http://localhost/echo", "/echo"},
                                          {"HTTP://127.0.0.1:80/echo?x=/y", "/echo"},
                                          {"http://[::1]:80", "/"},
                                          {"http://localhost?x=/y", "/"}}) {
    // The field does not count then.
    EXPECT_EQ(answer_to(fmt::format("GET {} HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", target)).body,
              fmt::format("GET {} ", path))
        << target;
  }
  EXPECT_EQ(answer_to("GET http://elsewhere.example/echo HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 403);
}

// A page of another site can give this machine's address a name of its own, and a browser would then let the
// page read the answers. The name in Host shows it.
TEST_F(AnHttpServer, DoesNotAnswerToANameThatOthersGiveThisMachine) {
  start();
  const auto asked_for = [this](const std::string& host) {
    return answer_to(fmt::format("GET /echo HTTP/1.1\r\nHost: {}\r\n\r\n", host));
  };
  for (const char* host : {"localhost", "LocalHost:5000", "localhost.", "LOCALHOST.:5000", "127.0.0.1",
                           "127.0.0.1:5000", "[::1]", "[::1]:5000", "192.0.2.1", ""})
    EXPECT_EQ(asked_for(host).status, 200) << host;
  for (const char* host : {"evil.example", "evil.example:5000", "evil.example.", "localhost..", ".",
                           "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"}) {
    const HttpResponse response = asked_for(host);
    EXPECT_EQ(response.status, 403) << host;
    EXPECT_NE(response.body.find(server_->address()), std::string::npos) << host;
  }
}

TEST_F(AnHttpServer, DoesNotAnswerToSuchANameWhereItsOwnAddressIsMappedToIpv6) {
  try {
    start({}, "::ffff:127.0.0.1");
  } catch (const InputError&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  for (const char* method : {"GET", "POST"}) {
    const std::string rest = " /echo HTTP/1.1\r\nContent-Length: 0\r\nHost: ";
    EXPECT_EQ(answer_to(method + rest + "evil.example\r\n\r\n").status, 403);
    EXPECT_EQ(answer_to(method + rest + "localhost\r\n\r\n").status, 200);
  }
}

// As in a URL. The client speaks IPv4, so the address is the one that stands for 127.0.0.1.
TEST_F(AnHttpServer, TakesAnIpv6AddressInBrackets) {
  try {
    start({}, "::ffff:127.0.0.1");
  } catch (const InputError&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  start({}, "[::ffff:127.0.0.1]");
  EXPECT_TRUE(server_->address().starts_with("http://[::ffff:127.0.0.1]:")) << server_->address();
  for (const char* host : {"[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]:5000", "localhost"})
    EXPECT_EQ(answer_to(fmt::format("GET /echo HTTP/1.1\r\nHost: {}\r\n\r\n", host)).status, 200) << host;
  EXPECT_EQ(answer_to("GET /echo HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
}

TEST_F(AnHttpServer, AnswersAHeadRequestThatIsWrongWithoutABody) {
  start();
  HttpClient client = connect();
  client.send("HEAD /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.read_response(/*has_body=*/false).status, 400);
  EXPECT_TRUE(client.ended_by_server());
}

// Browsers send more headers to this machine and over TLS than elsewhere.
TEST_F(AnHttpServer, DoesNothingForPagesOfOtherOrigins) {
  start();
  const auto asked_from = [this](const std::string& lines) {
    return answer_to(fmt::format("POST /echo HTTP/1.1\r\nHost: localhost:80\r\n{}\r\n", lines)).status;
  };
  for (const char* origin : {"http://evil.example", "http://localhost:81", "http://localhost", "null", ""})
    EXPECT_EQ(asked_from(fmt::format("Origin: {}\r\n", origin)), 403) << origin;
  EXPECT_EQ(asked_from("Origin: http://LocalHost:80\r\n"), 200);
  EXPECT_EQ(asked_from("Origin: https://localhost:80\r\n"), 200);
  EXPECT_EQ(asked_from("Origin: https://proxy.example\r\nSec-Fetch-Site: same-origin\r\n"), 200);
}

TEST_F(AnHttpServer, DoesNothingForPagesOfOtherSites) {
  start();
  const auto asked_from = [this](const char* method, const char* site) {
    return answer_to(fmt::format("{} /echo HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: {}\r\n\r\n", method,
                                 site))
        .status;
  };
  EXPECT_EQ(asked_from("POST", "cross-site"), 403);
  EXPECT_EQ(asked_from("GET", "cross-site"), 200) << "a link, say";
  for (const char* site : {"same-origin", "same-site", "none"})
    EXPECT_EQ(asked_from("POST", site), 200) << site;
}

TEST_F(AnHttpServer, TakesNoBodyThatIsCoded) {
  start();
  const auto sent_as = [this](const std::string& lines) {
    HttpClient client = connect();
    client.send_request("POST", "/echo", "body", lines);
    HttpResponse response = client.read_response();
    EXPECT_EQ(client.get("/echo").status, 200) << "the body's end is known";
    return response;
  };
  for (const char* coding : {"gzip", "x-gzip", "deflate", "br", "identity, gzip", "GZIP"}) {
    const HttpResponse response = sent_as(fmt::format("Content-Encoding: {}\r\n", coding));
    EXPECT_EQ(response.status, 415) << coding;
    EXPECT_EQ(response.headers.at("accept-encoding"), "identity");
    EXPECT_NE(response.body.find(coding), std::string::npos) << coding;
  }
  EXPECT_EQ(sent_as("Content-Encoding: identity\r\nContent-Encoding: gzip\r\n").status, 415);
  for (const char* lines : {"", "Content-Encoding: identity\r\n", "Content-Encoding: Identity\r\n",
                            "Content-Encoding:\r\n", "Accept-Encoding: gzip\r\n"})
    EXPECT_EQ(sent_as(lines).status, 200) << lines;
}

TEST_F(AnHttpServer, QuotesLittleOfWhatIsLong) {
  start();
  std::string many;
  for (int n = 0; n < 3000; ++n) many += "\u00e4";
  HttpClient client = connect();
  client.send(fmt::format("GET /echo HTTP/1.1\r\nHost: x{}\r\n\r\n", many));
  const HttpResponse host = client.read_response();
  client.send_request("POST", "/echo", "body", fmt::format("Content-Encoding: x{}\r\n", many));
  const HttpResponse coding = client.read_response();
  EXPECT_EQ(host.status, 403);
  EXPECT_EQ(coding.status, 415);
  for (const HttpResponse& response : {host, coding}) {
    EXPECT_LT(response.body.size(), 500U);
    EXPECT_EQ(response.body.find("\uFFFD"), std::string::npos) << "no character is cut: " << response.body;
  }
}

// HT7: an announced length is not trusted, and a body without an end is cut off.
TEST_F(AnHttpServer, RefusesLengthsThatAreWrongOrTooLarge) {
  start();
  const auto with_length = [](const std::string& lengths) {
    return fmt::format("POST /echo HTTP/1.1\r\nHost: localhost\r\n{}\r\n", lengths);
  };
  EXPECT_EQ(answer_to(with_length("Content-Length: 10000000000\r\n")).status, 413);
  for (const char* lengths :
       {"Content-Length: -1\r\n", "Content-Length: 18446744073709551616\r\n", "Content-Length: 1x\r\n",
        "Content-Length: \r\n", "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"}) {
    EXPECT_EQ(answer_to(with_length(lengths)).status, 400) << lengths;
  }
  expect_alive();
}

// Where a proxy sees a body, the server must not see a second request.
TEST_F(AnHttpServer, TakesNoBodyForARequest) {
  start();
  for (const char* coding : {"gzip", "chunked, gzip", "gzip, chunked", "chunked, chunked", "identity"}) {
    HttpClient client = connect();
    client.send(
        fmt::format("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {}\r\n\r\n"
                    "GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    coding));
    EXPECT_EQ(client.read_response().status, 400) << coding;
    EXPECT_TRUE(client.ended_by_server()) << coding;
  }
  HttpClient old = connect();  // RFC 9112 section 6.1
  old.send(
      "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n"
      "GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_response().status, 400);
  EXPECT_TRUE(old.ended_by_server());
  expect_alive();
}

TEST_F(AnHttpServer, CutsOffABodyWithoutAnEnd) {
  start();
  HttpClient client = connect();
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "4000\r\n" + std::string(0x4000, 'x') + "\r\n";
  const auto limit = HttpLimits().body_bytes;
  std::size_t sent = 0;
  for (; sent < 16 * limit && client.send(chunk); sent += 0x4000) {
  }
  // Either the server took the rest until the answer was read, or it ended the connection on the way.
  EXPECT_GE(sent, limit);
  EXPECT_EQ(client.read_head().status, 413);
  const std::string endless_line =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;";
  EXPECT_EQ(answer_to(endless_line + std::string(64 << 10, 'x')).status, 400);
  expect_alive();
}

TEST_F(AnHttpServer, RefusesALongHeader) {
  start();
  std::string many = "GET /echo HTTP/1.1\r\nHost: localhost\r\n";
  for (int n = 0; n < 2000; ++n) many += fmt::format("X-{}: 1234567890\r\n", n);
  EXPECT_EQ(answer_to(many + "\r\n").status, 431);
  EXPECT_EQ(answer_to("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status,
            431);
  EXPECT_EQ(
      answer_to("GET /echo HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(8'000, 'x') + "\r\n\r\n").status,
      200);
}

TEST_F(AnHttpServer, CountsTheBytesOfAHeaderHoweverTheyCome) {
  HttpLimits limits;
  limits.header_bytes = 1000;
  start(limits);
  const std::string head = "GET /echo HTTP/1.1\r\nHost: localhost\r\nX: ";
  const auto of_bytes = [&](std::size_t bytes) { return head + std::string(bytes - head.size(), 'x'); };
  EXPECT_EQ(answer_to(of_bytes(996) + "\r\n\r\n").status, 200);
  // More than one read takes, sent at once.
  for (const std::size_t bytes : {std::size_t{997}, std::size_t{5000}, std::size_t{24'041}}) {
    const HttpResponse answer = answer_to(of_bytes(bytes) + "\r\n\r\n");
    EXPECT_EQ(answer.status, 431) << bytes;
    EXPECT_NE(answer.body.find("the header is longer than 1000 bytes"), std::string::npos) << answer.body;
  }
  // Its first line is parsed before the others come.
  const std::size_t line = head.find("Host");
  for (const std::size_t bytes : {std::size_t{996}, std::size_t{997}, std::size_t{1010}, std::size_t{1020}}) {
    HttpClient client = connect();
    const std::string whole = of_bytes(bytes) + "\r\n\r\n";
    send_alone(client, whole.substr(0, line));
    client.send(whole.substr(line));
    const HttpResponse answer = client.read_response();
    EXPECT_EQ(answer.status, bytes == 996 ? 200 : 431) << bytes;
    const bool is_refused = answer.body.find("the header is longer than 1000 bytes") != std::string::npos;
    EXPECT_EQ(is_refused, bytes > 996) << answer.body;
  }
  std::string dense = "GET /echo HTTP/1.1\r\nHost: localhost\r\n";  // no space follows the colons
  while (dense.size() + 5 <= 998) dense += "X:y\r\n";
  EXPECT_EQ(answer_to(dense + "\r\n").status, 200);
}

TEST_F(AnHttpServer, CountsTrailersAsTheHeaderTheyBelongTo) {
  HttpLimits limits;
  limits.header_bytes = 1000;
  start(limits);
  const auto with_trailers = [&](std::size_t bytes, const std::string& last_chunk) {
    return answer_to(
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" +
        last_chunk + "\r\nX: " + std::string(bytes, 'x') + "\r\nY: y\r\n\r\n");
  };
  for (const char* last_chunk : {"0", "00", "0;a=b"}) {
    EXPECT_EQ(with_trailers(800, last_chunk).status, 200) << last_chunk;
    for (const std::size_t bytes : {std::size_t{980}, std::size_t{2000}, std::size_t{30'000}}) {
      const HttpResponse answer = with_trailers(bytes, last_chunk);
      EXPECT_EQ(answer.status, 431) << last_chunk << ", " << bytes;
      EXPECT_NE(answer.body.find("the header and the trailers are longer than 1000 bytes"), std::string::npos)
          << answer.body;
    }
  }
}

// RFC 9110 section 6.5.1. The request is sent at once, and cut before its body and its trailer.
TEST_F(AnHttpServer, TakesNoFieldOfATrailerForOneOfTheHeader) {
  start();
  HttpClient client = connect();
  const auto answer_to_fields = [&](const std::string& header, const std::string& trailer) {
    const std::string head = "POST /facts HTTP/1.1\r\n" + header + "Transfer-Encoding: chunked\r\n\r\n";
    const std::string body = "2\r\nab\r\n", end = "0\r\n" + trailer + "\r\n";
    client.send(head + body + end);
    const HttpResponse answer = client.read_response();
    send_alone(client, head);
    send_alone(client, body);
    send_alone(client, end);
    EXPECT_EQ(client.read_response().body, answer.body) << trailer;
    EXPECT_FALSE(answer.headers.contains("connection")) << trailer;
    return answer.body;
  };
  const std::string host = "Host: localhost\r\n", plain = "localhost, coding '': ab";
  const std::string foreign = host + "Origin: http://evil\r\n";
  EXPECT_EQ(answer_to_fields(host, ""), plain);
  EXPECT_EQ(answer_to_fields(host, "Host: other\r\n"), plain);
  EXPECT_EQ(answer_to_fields(host, "Origin: http://evil\r\n"), plain);
  EXPECT_EQ(answer_to_fields(host, "Content-Encoding: gzip\r\n"), plain);
  EXPECT_EQ(answer_to_fields(host, "Connection: close\r\n"), plain);
  for (const char* trailer : {"", "Sec-Fetch-Site: none\r\n"})
    EXPECT_NE(answer_to_fields(foreign, trailer).find("a web page of another site"), std::string::npos)
        << trailer;
  EXPECT_EQ(
      answer_to("POST /facts HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + host + "\r\n").status,
      400);
  // Where the body ends is said twice: refused, so that no two programs see different ends.
  for (const char* field : {"Content-Length: 2\r\n", "Transfer-Encoding: chunked\r\n"})
    EXPECT_EQ(answer_to("POST /facts HTTP/1.1\r\n" + host +
                        "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n" + field + "\r\n")
                  .status,
              400)
        << field;
}

TEST_F(AnHttpServer, LeavesWhoNeverEndsARequest) {
  HttpLimits limits;
  limits.read = milliseconds(50);
  start(limits);
  for (const char* beginning : {"P", "POST /echo HTTP/1.1\r\nHost: localhost\r\n",
                                "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbod"}) {
    HttpClient client = connect();
    client.send(beginning);
    EXPECT_EQ(client.read_response().status, 408) << beginning;
    EXPECT_TRUE(client.ended_by_server());
  }
  // Nor does it help to send a byte now and then.
  HttpClient slow = connect();
  slow.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  while (slow.send("x")) std::this_thread::yield();
  EXPECT_EQ(counts().responses.at(408), 4);
}

TEST_F(AnHttpServer, LeavesWhoAsksNothing) {
  HttpLimits limits;
  limits.idle = milliseconds(50);
  start(limits);
  EXPECT_TRUE(connect().ended_by_server());
  HttpClient client = connect();
  EXPECT_EQ(client.get("/echo").status, 200);
  EXPECT_TRUE(client.ended_by_server());
}

TEST_F(AnHttpServer, TurnsAwayWhoIsOneTooMany) {
  HttpLimits limits;
  limits.connections = 2;
  start(limits);
  HttpClient first = connect(), second = connect();
  first.send_request("POST", "/hold");
  second.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(2));
  HttpClient third = connect();
  const HttpResponse refusal = third.read_response();
  EXPECT_EQ(refusal.status, 503);
  EXPECT_EQ(refusal.headers.at("retry-after"), "1");
  EXPECT_TRUE(third.ended_by_server());
  third.hang_up();
  first.hang_up();
  wait_for_connections(1);
  expect_alive();
}

TEST_F(AnHttpServer, ClosesWhoHasBeenIdleLongestForANewcomer) {
  HttpLimits limits;
  limits.connections = 3;
  start(limits);
  HttpClient busy = connect(), reused = connect(), unused = connect();
  busy.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  wait_for_connections(3);
  EXPECT_EQ(reused.get("/echo").status, 200);  // it has been idle for a shorter time than the third now
  HttpClient newcomer = connect();
  EXPECT_EQ(newcomer.get("/echo").status, 200);
  EXPECT_EQ(unused.read_response().status, 503);
  EXPECT_TRUE(unused.ended_by_server());
  EXPECT_EQ(reused.get("/echo").status, 200);
  HttpClient next = connect();
  EXPECT_EQ(next.get("/echo").status, 200);
  EXPECT_TRUE(newcomer.ended_by_server());
  with_held(1, [](HttpExchange& exchange) { exchange.answer(text("held")); });
  EXPECT_EQ(busy.read_response().body, "held") << "who waits for an answer is not idle";
  EXPECT_EQ(counts().responses.at(503), 1) << "who had an answer is closed without another";
}

TEST_F(AnHttpServer, TellsAClientWhyItMustGiveWayBeforeItHasAsked) {
  HttpLimits limits;
  limits.connections = 2;
  start(limits);
  HttpClient busy = connect(), slow = connect();
  busy.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  wait_for_connections(2);
  HttpClient newcomer = connect();
  EXPECT_EQ(newcomer.get("/echo").status, 200);
  slow.send_request("GET", "/echo");
  const HttpResponse refusal = slow.read_response();
  EXPECT_EQ(refusal.status, 503);
  EXPECT_EQ(refusal.headers.at("retry-after"), "1");
  EXPECT_TRUE(slow.ended_by_server());
}

TEST_F(AnHttpServer, ClosesWhoHasBeenIdleLongestWhenNoFileCanBeOpened) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs files of its own";
  HttpLimits limits;
  limits.read = limits.idle = std::chrono::hours(1);
  start(limits);
  HttpClient idle = connect();
  EXPECT_EQ(idle.get("/echo").status, 200);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const int next_file = dup(STDERR_FILENO);
  close(next_file);
  const rlimit none_more{static_cast<rlim_t>(next_file) + 1, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_more), 0);
  HttpClient last = connect();  // with the last file
  EXPECT_EQ(last.get("/echo").status, 200);
  EXPECT_TRUE(idle.ended_by_server());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

TEST_F(AnHttpServer, ServesANewcomerWithTheLastFile) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs files of its own";
  start();
  HttpClient busy = connect();
  busy.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const int first_file = dup(STDERR_FILENO), second_file = dup(STDERR_FILENO);
  close(first_file);
  close(second_file);
  const rlimit two_more{static_cast<rlim_t>(second_file) + 1, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &two_more), 0);
  {
    HttpClient newcomer = connect();  // with the first; the server has the second
    EXPECT_EQ(newcomer.get("/echo").status, 200);
    EXPECT_EQ(newcomer.get("/echo").status, 200);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
}

TEST_F(AnHttpServer, ServesEverybodyBesideAsManyIdleConnectionsAsItTakes) {
  HttpLimits limits;
  limits.connections = 8;
  start(limits);
  std::vector<HttpClient> idle;
  for (int n = 0; n < 100; ++n) {
    idle.push_back(connect());
    expect_alive();
  }
  EXPECT_LE(counts().connections, 2 * limits.connections);  // those that are told 503 included
}

// A connection with a part of a request, even if more of it comes now and then, can still be closed for
// others.
TEST_F(AnHttpServer, ClosesWhoHasNotEndedARequestForANewcomer) {
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";
  for (const std::string& beginning : {std::string("GET /ec"), head, head + "x"}) {
    HttpLimits limits;
    limits.connections = 3;
    limits.read = limits.idle = kForEver * 10;
    start(limits);
    HttpClient first = connect(), second = connect(), third = connect();
    wait_for_connections(3);
    for (HttpClient* client : {&third, &second, &first}) send_alone(*client, beginning);
    send_alone(first, "x");  // the last to send, and accepted first all the same
    ASSERT_EQ(connect().get("/health").status, 200) << beginning;
    EXPECT_TRUE(first.ended_by_server()) << beginning;
    wait_for_connections(2);  // the newcomer has hung up
    for (int n = 0; n < 10; ++n) expect_alive();
    EXPECT_EQ(counts().responses.count(503), 0U) << beginning;
  }
}

TEST_F(AnHttpServer, KeepsNobodyOutForThoseThatItLeaves) {
  HttpLimits limits;
  limits.connections = 3;
  limits.linger = limits.write = kForEver * 10;
  start(limits);
  std::vector<HttpClient> refused;
  for (int n = 0; n < 20; ++n) {
    refused.push_back(connect());
    refused.back().send("no request\r\n\r\n");
    EXPECT_EQ(refused.back().read_response().status, 400);
    expect_alive();
  }
  EXPECT_LE(counts().connections, 2 * limits.connections);
  EXPECT_EQ(counts().responses.count(503), 0U);
}

TEST_F(AnHttpServer, DoesNotWaitForLongForAClientThatItLeaves) {
  HttpLimits limits;
  limits.linger = milliseconds(50);
  limits.write = kForEver * 10;
  start(limits);
  HttpClient client = connect();
  client.send("GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_TRUE(client.ended_by_server());
  wait_for_connections(0);  // though this client never closes its own side
}

// Who leaves

// HT1: a client leaves before the answer, with and without a reset, or ends its sending.
TEST_F(AnHttpServer, NoticesThatAClientLeavesBeforeItsAnswer) {
  start();
  int departed = 0;
  for (const bool half : {false, true}) {
    HttpClient client = connect();
    client.send_request("POST", "/hold");
    ASSERT_TRUE(held_count_.wait_for(departed + 1));
    half ? client.end_sending() : client.hang_up();
    EXPECT_TRUE(departures_.wait_for(++departed));
  }
  with_held(1, [](HttpExchange& exchange) {
    EXPECT_TRUE(exchange.departed());
    exchange.answer(text("to nobody"));  // harmless
    exchange.begin_stream("text/event-stream");
    exchange.send("to nobody");
    exchange.end_stream();
  });
  EXPECT_EQ(counts().departures, 2);
  EXPECT_EQ(counts().connections, 0U);
  expect_alive();
}

TEST_F(AnHttpServer, NoticesThatAClientLeavesItsStream) {
  start();
  HttpClient client = connect();
  client.send_request("POST", "/hold");
  with_held(1, [](HttpExchange& exchange) {
    exchange.begin_stream("text/event-stream");
    exchange.send("part");
  });
  EXPECT_EQ(client.read_head().status, 200);
  client.hang_up();  // "part" is unread: a reset
  EXPECT_TRUE(departures_.wait_for(1));
}

TEST_F(AnHttpServer, GivesUpAClientThatDoesNotReadItsStream) {
  HttpLimits limits;
  limits.socket_bytes = 4 << 10;
  limits.write = milliseconds(50);
  start(limits);
  HttpClient client(port(), /*receive_buffer=*/4 << 10);
  client.send_request("POST", "/hold");
  with_held(1, [&](HttpExchange& exchange) {
    exchange.begin_stream("text/event-stream");
    exchange.send(std::string(1 << 20, 'x'));
  });
  EXPECT_TRUE(departures_.wait_for(1));
  expect_alive();
}

// Bytes that do not fit into the system's buffers wait in the server's.
TEST_F(AnHttpServer, SaysThatAClientIsBehindAndThatItHasCaughtUp) {
  HttpLimits limits;
  limits.unsent_bytes = 16 << 10;
  limits.socket_bytes = 4 << 10;
  limits.write = kForEver * 10;
  start(limits);
  HttpClient client(port(), /*receive_buffer=*/4 << 10);
  client.send_request("POST", "/hold");
  Counter caught_up;
  std::size_t sent = 0;
  with_held(1, [&](HttpExchange& exchange) {
    exchange.on_caught_up([&caught_up] { caught_up.add(); });
    exchange.begin_stream("text/event-stream");
    EXPECT_FALSE(exchange.is_behind());
    for (const std::string part(1 << 10, 'x'); !exchange.is_behind() && sent < (1 << 20); sent += part.size())
      exchange.send(part);
    EXPECT_TRUE(exchange.is_behind());
    EXPECT_LT(sent, 64U << 10);
    EXPECT_FALSE(exchange.departed());
  });
  EXPECT_EQ(client.read_head().status, 200);
  std::size_t received = 0;
  while (received < sent) received += client.read_chunk()->size();
  EXPECT_TRUE(caught_up.wait_for(1));
  with_held(1, [](HttpExchange& exchange) {
    EXPECT_FALSE(exchange.is_behind());
    exchange.end_stream();
  });
  EXPECT_FALSE(client.read_chunk());
  EXPECT_EQ(caught_up.count(), 1) << "it was behind once";
}

TEST_F(AnHttpServer, GivesUpAClientThatDoesNotReadItsAnswer) {
  HttpLimits limits;
  limits.socket_bytes = 4 << 10;
  limits.write = milliseconds(50);
  start(limits);
  HttpClient client(port(), /*receive_buffer=*/4 << 10);
  client.send_request("POST", "/hold");
  with_held(1, [](HttpExchange& exchange) { exchange.answer(text(std::string(1 << 20, 'x'))); });
  EXPECT_TRUE(departures_.wait_for(1));
}

TEST_F(AnHttpServer, GivesUpAClientThatSendsWithoutEndWhileItWaits) {
  start();
  HttpClient client = connect();
  client.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  while (client.send(std::string(1 << 10, 'x'))) {
  }
  EXPECT_TRUE(departures_.wait_for(1));
}

// HT8: no client waits for many streams, many silent connections or some slow ones.
TEST_F(AnHttpServer, AnswersBesideManyThatAreBusyIdleOrSlow) {
  start();
  std::vector<HttpClient> clients;
  for (int n = 0; n < 64; ++n) {
    clients.push_back(connect());
    clients.back().send_request("POST", "/hold");
    with_held(n + 1, [](HttpExchange& exchange) {
      exchange.begin_stream("text/event-stream");
      exchange.send("part");
    });
  }
  for (int n = 0; n < 64; ++n) clients.push_back(connect());
  for (int n = 0; n < 8; ++n) {
    clients.push_back(connect());
    clients.back().send("P");
  }
  for (int n = 0; n < 20; ++n) expect_alive();
  EXPECT_EQ(departures_.count(), 0);
}

// The server's own life

TEST_F(AnHttpServer, EndsWhenWhatHasComeIsAnswered) {
  start();
  HttpClient waiting = connect(), asking = connect();
  waiting.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  server_->post([this] { server_->end_when_answered(); });
  asking.send_request("GET", "/echo");
  const HttpResponse last = asking.read_response();
  EXPECT_EQ(last.status, 200) << "there is still somebody to ask";
  EXPECT_EQ(last.headers.at("connection"), "close");
  with_held(1, [](HttpExchange& exchange) { exchange.answer(text("held")); });
  EXPECT_EQ(waiting.read_response().body, "held");
  EXPECT_TRUE(waiting.ended_by_server());
  server_->wait();
  server_->post([] { ADD_FAILURE() << "the server has ended"; });
  EXPECT_THROW(connect(), std::runtime_error);
}

TEST_F(AnHttpServer, EndsAtOnceWhenItIsTold) {
  start();
  HttpClient waiting = connect();
  waiting.send_request("POST", "/hold");
  ASSERT_TRUE(held_count_.wait_for(1));
  server_->end();
  server_->wait();
  EXPECT_EQ(departures_.count(), 1);
  EXPECT_TRUE(waiting.ended_by_server());
}

TEST_F(AnHttpServer, NeedsAPortThatIsFreeAndAnAddressOfThisMachine) {
  start();
  EXPECT_THROW(HttpServer("127.0.0.1", port(), {}), RunError);
  EXPECT_THROW(HttpServer("192.0.2.1", 0, {}), InputError) << "an address for examples, nobody's";
  EXPECT_THROW(HttpServer("no such host", 0, {}), InputError);
  const HttpServer by_name("localhost", 0, {});
  EXPECT_NE(port_of(by_name.address()), 0);
}

}  // namespace
}  // namespace kvcache
