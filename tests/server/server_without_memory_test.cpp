// A server one of whose threads finds no memory, once, at any place: it goes on, and no client waits for
// ever. Each gets its whole answer, an error, or the end of its connection. No test waits for a time: the
// allocation that fails is counted. Left out are answers while they are made as JSON: the library allocates
// in destructors (nlohmann-json 3.11), and a destructor without memory ends the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "common/server/generation_server.h"
#include "tests/support/failing_new.h"
#include "tests/support/files.h"
#include "tests/support/http_client.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;

constexpr int kPlaces = 100;  // more than a request has

/// The answer of a server whose thread fails at its allocation number `place` from now on.
HttpResponse answer_without_memory(int place, int port, const std::string& method, const std::string& path,
                                   const std::string& body) {
  fails_in = place;
  HttpClient client(port);
  client.send_request(method, path, body);
  HttpResponse response = client.read_response();
  fails_in = -1;
  return response;
}

TEST(AnHttpServerWithoutMemory, GoesOnAndLeavesNoClientWaiting) {
  HttpServer server("127.0.0.1", 0, {});
  server.start([](const std::shared_ptr<HttpExchange>& exchange) {
    HttpAnswer answer;
    answer.body = exchange->request().body;
    exchange->answer(answer);
  });
  server.post([] { may_fail = true; });
  const int port = port_of(server.address());
  int whole = 0, lost = 0;
  for (const std::string& body : {std::string(), std::string(100'000, 'x')}) {
    for (int place = 0; place < kPlaces; ++place) {
      const HttpResponse response = answer_without_memory(place, port, "POST", "/echo", body);
      if (response.status == 500) {
        EXPECT_EQ(response.error().at("message"), "out of memory");
      } else if (response.status == 200 && response.body.size() == body.size()) {
        ++whole;
      } else {
        EXPECT_TRUE(response.status == 0 || response.status == 200) << response.status;
        ++lost;
      }
      ASSERT_EQ(HttpClient(port).get("/").status, 200) << place;
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(lost, 0);
}

// A gap in a log would look like less traffic.
TEST(ATraceLogWithoutMemory, EndsWithANoteInsteadOfLeavingOutALine) {
  const TemporaryFolder folder;
  const std::string file = folder / "traffic.jsonl";
  GenerationRequest request;
  request.prompt_ids.assign(4'000, 5);  // a line that needs memory
  int ended = 0;
  for (int place = 0; place < kPlaces; ++place) {
    TraceLog log(file, 4, "");
    log.replace_file();
    LoggedRequest first = log.arrived(request, {}), second = log.arrived(request, {});
    const GenerationEvent end{.finish_reason = "length", .admitted = true};
    testing::internal::CaptureStderr();
    may_fail = true;
    fails_in = place;
    log.hear(end, first);
    const bool has_failed = fails_in.exchange(-1) < 0;
    may_fail = false;
    log.hear(end, second);
    const std::string note = testing::internal::GetCapturedStderr(), lines = read_file(file);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), has_failed ? 0 : 2) << place;
    EXPECT_EQ(note.find("out of memory; no more requests are logged") != std::string::npos, has_failed);
    ended += has_failed ? 1 : 0;
  }
  EXPECT_GT(ended, 0);
  EXPECT_LT(ended, kPlaces);
}

/// A store at whose first pass the next allocation of the server's thread fails, or none from there on.
class ArmingStore final : public KvStore {
 public:
  explicit ArmingStore(KvStore& store) : store_(store) {}
  /// @param place  that fails, counted from the first pass; below 0: none
  void arm(int place) {
    place_ = place;
    is_first_ = true;
  }
  void begin(const PassPlan& plan) override {
    is_spared = true;  // the engine's thread
    if (is_first_.exchange(false)) fails_in = place_.load();
    store_.begin(plan);
  }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override {
    store_.store_and_attend(layer, heads, rows, out);
  }

 private:
  KvStore& store_;
  std::atomic<int> place_ = -1;
  std::atomic<bool> is_first_ = false;
};

class AGenerationServerWithoutMemory : public testing::Test {
 protected:
  AGenerationServerWithoutMemory() {
    std::promise<void> ready;
    serving_ = std::thread([&] {
      server_.serve(door_, {"llama-gqa", &model_->config(), nullptr, cache_.manager.get(), 4}, [&] {
        may_fail = true;
        ready.set_value();
      });
    });
    ready.get_future().wait();
  }
  ~AGenerationServerWithoutMemory() override {
    server_.end();
    serving_.join();
  }
  int port() const { return port_of(server_.address()); }
  static Json request(bool streams) {
    return {{"prompt_ids", {5, 6, 7}}, {"max_tokens", 3}, {"ignore_eos", true}, {"stream", streams}};
  }
  HttpResponse answer(int place, const std::string& method, const std::string& path,
                      const std::string& body = "") {
    return answer_without_memory(place, port(), method, path, body);
  }
  static GenerationServerSettings any_port() {
    GenerationServerSettings settings;
    settings.port = 0;
    return settings;
  }
  /// Its memory is free again, and it answers as before.
  void expect_alive() {
    Json health;
    bool is_idle = false;
    for (int looks = 0; looks < 10'000 && !is_idle; ++looks) {  // the engine may still be at work
      health = HttpClient(port()).get("/health").json();
      is_idle = health["running"] == 0 && health["waiting"] == 0 && health["blocks"]["in_use"] == 0;
    }
    ASSERT_TRUE(is_idle) << health;
    ASSERT_EQ(health["status"], "ok");
    ASSERT_EQ(HttpClient(port()).post("/generate", request(false)).json()["ids"].size(), 3);
  }

  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_ = reference_model("llama-gqa", threads_);
  ServingCache cache_{Kind::sharing, 64, 4, model_->config(), threads_};
  ArmingStore store_{*cache_.store};
  Engine engine_{*model_, *cache_.manager, store_, nullptr, {.max_batch_tokens = 16, .max_sequences = 4}};
  EngineThread door_{engine_, 8};
  GenerationServer server_{any_port(), "llama-gqa"};
  std::thread serving_;
};

TEST_F(AGenerationServerWithoutMemory, TakesARequestOrAnswersOrEndsIt) {
  const Json ids = HttpClient(port()).post("/generate", request(false)).json()["ids"];
  int whole = 0;
  for (int place = 0; place < kPlaces; ++place) {
    store_.arm(-1);
    const HttpResponse response = answer(place, "POST", "/generate", request(false).dump());
    if (response.status == 200) {
      EXPECT_EQ(response.json()["ids"], ids);
      ++whole;
    } else {
      EXPECT_TRUE(response.status == 0 || response.status == 500) << response.body;
    }
    ASSERT_NO_FATAL_FAILURE(expect_alive());
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, kPlaces);
}

// The token is lost, so the answer would lack it.
TEST_F(AGenerationServerWithoutMemory, EndsAnAnswerThatHasLostAToken) {
  for (const bool streams : {false, true}) {
    store_.arm(0);
    const HttpResponse response = answer(-1, "POST", "/generate", request(streams).dump());
    EXPECT_EQ(response.status, 0) << response.body;
    ASSERT_NO_FATAL_FAILURE(expect_alive());
  }
}

TEST_F(AGenerationServerWithoutMemory, TellsItsStateAfterwards) {
  for (const char* path : {"/", "/metrics"}) {
    for (int place = 0; place < kPlaces; ++place) {
      const HttpResponse response = answer(place, "GET", path);
      EXPECT_TRUE(response.status == 200 || response.status == 0 || response.status == 500) << response.body;
      ASSERT_EQ(HttpClient(port()).get(path).status, 200) << place;
    }
  }
}

// The threads that fetch the engine's state and read bodies find no memory.
TEST_F(AGenerationServerWithoutMemory, LeavesNobodyWaitingForAnotherThread) {
  is_spared = true;
  ASSERT_NO_FATAL_FAILURE(expect_alive());
  others_fail = true;
  int whole = 0, lost = 0;
  for (const char* path : {"/health", "/metrics", "/state"}) {
    for (int place = 0; place < kPlaces; ++place) {
      const HttpResponse response = answer(place, "GET", path);
      ASSERT_TRUE(response.status == 200 || response.status == 0) << response.status;
      ++(response.status == 200 ? whole : lost);
      ASSERT_NO_FATAL_FAILURE(expect_alive());
    }
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(lost, 0);
  // No object: the library allocates in its destructor.
  int refused = 0, failed = 0;
  for (int place = 0; place < kPlaces; ++place) {
    const HttpResponse response = answer(place, "POST", "/generate", "5");
    ASSERT_TRUE(response.status == 400 || response.status == 500) << response.status;
    ++(response.status == 400 ? refused : failed);
    ASSERT_NO_FATAL_FAILURE(expect_alive());
  }
  others_fail = false;
  EXPECT_GT(refused, 0);
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace kvcache
