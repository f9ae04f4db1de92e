// A model behind HTTP: its answers are those of its program, whatever other requests run. A mistake is
// refused with the field's name. A client that leaves frees its memory. HT*, SC*, SP*, TK*, PX*: cases from
// reports about other servers. No test waits for a time: where it matters, the engine is held before a pass.
#include "common/server/generation_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "common/base/error.h"
#include "common/server/openai.h"
#include "common/server/request_fields.h"
#include "common/tokenizer/utf8.h"
#include "tests/support/files.h"
#include "tests/support/http_client.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr std::chrono::minutes kForEver{2};
constexpr std::int64_t kBlockSize = 16;
const std::string kPrompt = "The wolf said";

/// A gate before each pass, which a test may close.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    may_pass_ = arrived_ = 0;
  }
  void open() { let(kAll); }
  /// Lets so many passes through.
  void let(int passes) {
    const std::lock_guard lock(mutex_);
    may_pass_ = std::min(may_pass_ + passes, kAll);
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return may_pass_ > 0; });
    if (may_pass_ != kAll) --may_pass_;
  }
  /// Waits until the engine has come for the `count`th time since it was closed.
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kForEver, [&] { return arrived_ >= count; }));
  }

 private:
  static constexpr int kAll = 1 << 29;

  std::mutex mutex_;
  std::condition_variable changed_;
  int may_pass_ = kAll, arrived_ = 0;
};

/// The manager that the server's readers ask for the capacity. They ask before they encode a text, which is
/// counted, and after it, where a long prompt waits at a gate.
class AskedCapacity final : public KvManager {
 public:
  static constexpr std::int64_t kLong = 100;  // tokens

  AskedCapacity(const KvManager& manager, Gate& gate) : manager_(manager), gate_(gate) {}
  int encoded() const { return encoded_; }
  /// The next text finds no memory.
  void fail_once() { fails_ = true; }

  std::int64_t capacity() const override {
    if (fails_.exchange(false)) throw std::bad_alloc();
    ++encoded_;
    return manager_.capacity();
  }
  std::int64_t capacity_for(std::span<const std::int32_t> token_ids, std::string_view salt) const override {
    if (std::ssize(token_ids) > kLong) gate_.pass();
    return manager_.capacity_for(token_ids, salt);
  }
  std::optional<PassPlan> plan(std::span<const Work>) override { throw std::logic_error("only asked"); }
  void commit(const PassPlan&) override {}
  void abort(const PassPlan&) override {}
  void free(std::int32_t) override {}
  KvMemoryReport memory() const override { return {}; }

 private:
  const KvManager& manager_;
  Gate& gate_;
  mutable std::atomic<int> encoded_ = 0;
  mutable std::atomic<bool> fails_ = false;
};

/// A store whose passes wait at a gate, and of which one may fail.
class GatedStore final : public KvStore {
 public:
  GatedStore(KvStore& store, Gate& gate) : store_(store), gate_(gate) {}
  void fail_at(int pass) { fails_in_ = pass; }
  void begin(const PassPlan& plan) override {
    gate_.pass();
    if (--fails_in_ == 0) throw RunError("the device is gone");
    store_.begin(plan);
  }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override {
    store_.store_and_attend(layer, heads, rows, out);
  }

 private:
  KvStore& store_;
  Gate& gate_;
  int fails_in_ = 0;
};

struct Served {
  Kind kind = Kind::sharing;
  std::int64_t blocks = 256;
  SchedulerSettings scheduler{.max_batch_tokens = 64, .max_sequences = 8};
  std::int64_t max_requests = 32;
  GenerationServerSettings server = {};
  bool has_tokenizer = true;
  const Tokenizer* tokenizer = nullptr;  // another than the model's own
  std::vector<std::int32_t> pinned = {};
};

class AGenerationServer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    threads_ = new ThreadPool(1);
    lone_threads_ = new ThreadPool(1);
    model_ = reference_model("fairytale", *threads_).release();
    lone_model_ = reference_model("fairytale", *lone_threads_).release();
    tokenizer_ = new Tokenizer(checkpoint_folder("fairytale"));
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete lone_model_;
    delete model_;
    delete lone_threads_;
    delete threads_;
  }

  void start(const Served& served = {}) {
    listen(served.server);
    load(served);
  }
  void listen(GenerationServerSettings settings = {}) {
    settings.port = 0;
    server_ = std::make_unique<GenerationServer>(settings, "fairytale");
  }
  void load(const Served& served) {
    cache_ =
        std::make_unique<ServingCache>(served.kind, served.blocks, kBlockSize, model_->config(), *threads_);
    store_ = std::make_unique<GatedStore>(*cache_->store, gate_);
    const Tokenizer* const own = served.has_tokenizer ? tokenizer_ : nullptr;
    const Tokenizer* const tokenizer = served.tokenizer != nullptr ? served.tokenizer : own;
    engine_ = std::make_unique<Engine>(*model_, *cache_->manager, *store_, tokenizer, served.scheduler);
    if (!served.pinned.empty()) engine_->pin(served.pinned);
    pinned_ = cache_->manager->memory().used_bytes;
    door_ = std::make_unique<EngineThread>(*engine_, served.max_requests);
    asked_ = std::make_unique<AskedCapacity>(*cache_->manager, reading_);
    const ServedModel model{"fairytale", &model_->config(), tokenizer, asked_.get(),
                            served.scheduler.max_sequences};
    std::promise<void> ready;
    serving_ = std::thread([this, model, &ready] {
      try {
        server_->serve(
            *door_, model, [&ready] { ready.set_value(); }, log_.get());
      } catch (const RunError& error) {
        failure_ = error.what();
      }
    });
    ready.get_future().wait();
  }
  /// Ends the server as a signal would.
  void end() {
    gate_.open();
    reading_.open();
    server_->end();
    if (serving_.joinable()) serving_.join();
  }
  void TearDown() override {
    if (server_) end();
    if (door_ && door_->status(kForEver).failure.empty()) expect_nothing_is_held();
    door_.reset();
  }
  void expect_nothing_is_held() {
    ASSERT_TRUE(door_->wait_until_idle(kForEver));
    const EngineStatus status = door_->status(kForEver);
    EXPECT_EQ(status.memory.used_bytes, pinned_);
    EXPECT_TRUE(pinned_ > 0 || status.blocks.in_use == 0);
    EXPECT_EQ(status.waiting, 0);
    EXPECT_TRUE(status.running.empty());
  }

  HttpClient connect() const { return HttpClient(port_of(server_->address())); }
  HttpResponse get(const std::string& path) const { return connect().get(path); }
  HttpResponse post(const Json& body, const std::string& path = "/generate") const {
    return connect().post(path, body);
  }
  Json generate(const Json& body) const {
    const HttpResponse response = post(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json();
  }
  /// The parts of a stream, without its end.
  std::vector<Json> stream(Json body, const std::string& path = "/generate") const {
    body["stream"] = true;
    HttpClient client = connect();
    client.send_request("POST", path, body.dump());
    return read_stream(client);
  }
  static std::vector<Json> read_stream(HttpClient& client) {
    EXPECT_EQ(client.read_head().headers.at("content-type"), "text/event-stream");
    std::vector<Json> parts;
    bool ended = false;
    while (const std::optional<std::string> chunk = client.read_chunk()) {
      EXPECT_FALSE(ended);
      EXPECT_TRUE(chunk->starts_with("data: ") && chunk->ends_with("\n\n")) << *chunk;
      ended = *chunk == "data: [DONE]\n\n";
      if (!ended) parts.push_back(Json::parse(chunk->substr(6)));
    }
    EXPECT_TRUE(ended);
    return parts;
  }
  /// Opens a stream and reads `parts` of it.
  HttpClient open_stream(Json body, int parts) const {
    body["stream"] = true;
    HttpClient client = connect();
    client.send_request("POST", "/generate", body.dump());
    if (parts > 0) {
      EXPECT_EQ(client.read_head().status, 200);
    }
    for (int part = 0; part < parts; ++part) EXPECT_TRUE(client.read_chunk());
    return client;
  }
  /// Status and field of a refusal of POST /generate.
  std::pair<int, std::string> refusal(const Json& body, const std::string& path = "/generate") const {
    return refusal_of_text(body.dump(), path);
  }
  std::pair<int, std::string> refusal_of_text(const std::string& body,
                                              const std::string& path = "/generate") const {
    HttpClient client = connect();
    client.send_request("POST", path, body);
    const HttpResponse response = client.read_response();
    if (response.status == 200) return {200, ""};
    const Json field = response.error().at("field");
    EXPECT_NE(response.error().at("message"), "");
    return {response.status, field.is_null() ? "" : field.get<std::string>()};
  }
  /// Waits until the server has noticed so many departures.
  void wait_for_departures(int count) const {
    const std::string line = fmt::format("kvcache_http_departures_total {}\n", count);
    while (get("/metrics").body.find(line) == std::string::npos) std::this_thread::yield();
  }

  /// Logs the requests from the next start on.
  void log_requests() {
    log_ = std::make_unique<TraceLog>(folder_ / "traffic.jsonl", kBlockSize, "");
    log_->replace_file();
  }
  /// The lines of the log.
  std::vector<Json> logged() const {
    std::istringstream text(read_file(folder_ / "traffic.jsonl"));
    std::vector<Json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  /// Waits until the server has heard of so many ends of this kind.
  void wait_for_ends(const std::string& reason, int count) const {
    const std::string line = fmt::format("kvcache_outputs_total{{reason=\"{}\"}} {}\n", reason, count);
    while (get("/metrics").body.find(line) == std::string::npos) std::this_thread::yield();
  }

  /// Waits until so many requests wait: to be read, or to be admitted.
  void wait_until_waiting(int count) const {
    while (get("/health").json()["waiting"] != count) std::this_thread::yield();
  }

  /// The answer of the model alone, from the loop of the four programs.
  SequenceReport alone(const Request& request) {
    ServingCache cache(Kind::sharing, 80, kBlockSize, lone_model_->config(), *lone_threads_);
    return run(*lone_model_, *cache.manager, *cache.store, {&request, 1}).sequences[0];
  }
  static std::vector<std::int32_t> ids_of(const std::string& text) { return tokenizer_->encode(text); }
  static std::vector<std::int32_t> made_up_ids(std::int64_t count, int kind = 0) {
    std::vector<std::int32_t> ids;
    for (std::int64_t n = 0; n < count; ++n)
      ids.push_back(static_cast<std::int32_t>((n * 7919 + kind * 37 + 1) % 4000 + 1));
    return ids;
  }

  static ThreadPool *threads_, *lone_threads_;  // the engine's thread has the first for itself
  static Transformer *model_, *lone_model_;
  static Tokenizer* tokenizer_;
  Gate gate_, reading_;
  TemporaryFolder folder_;
  std::unique_ptr<TraceLog> log_;  // none: nothing is logged
  std::unique_ptr<AskedCapacity> asked_;
  std::unique_ptr<GenerationServer> server_;
  std::unique_ptr<ServingCache> cache_;
  std::unique_ptr<GatedStore> store_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineThread> door_;
  std::int64_t pinned_ = 0;  // bytes
  std::string failure_;
  std::thread serving_;
};

ThreadPool *AGenerationServer::threads_, *AGenerationServer::lone_threads_;
Transformer *AGenerationServer::model_, *AGenerationServer::lone_model_;
Tokenizer* AGenerationServer::tokenizer_;

using Refusal = std::pair<int, std::string>;

// Answers

TEST_F(AGenerationServer, SaysThatThereIsNoMemoryToReadARequest) {
  start();
  asked_->fail_once();
  const HttpResponse response = post({{"prompt", kPrompt}});
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.error().at("message"), "out of memory");
  EXPECT_EQ(post({{"prompt", kPrompt}, {"max_tokens", 1}}).status, 200);
}

TEST_F(AGenerationServer, AnswersAsTheProgramsDoInEveryStep) {
  const SequenceReport expected = alone({ids_of(kPrompt), 24, false, {}});
  for (const Kind kind : kAllKinds) {
    start({.kind = kind});
    const Json answer = generate({{"prompt", kPrompt}, {"max_tokens", 24}});
    EXPECT_EQ(answer["ids"], Json(expected.output_ids)) << name_of(kind);
    EXPECT_EQ(answer["text"], tokenizer_->decode(expected.output_ids));
    EXPECT_EQ(answer["finish_reason"], "length");
    EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 3}, {"cached_tokens", 0}, {"generated_tokens", 24}}));
    for (const char* name : {"queue_ms", "prefill_ms", "decode_ms"}) EXPECT_GE(answer["timings"][name], 0.0);
    EXPECT_FALSE(answer.contains("samples"));
    EXPECT_EQ(generate({{"prompt_ids", ids_of(kPrompt)}, {"max_tokens", 24}})["ids"], answer["ids"]);
    TearDown();
  }
}

TEST_F(AGenerationServer, ReportsWhatAPromptFoundInTheCache) {
  start();
  const Json request = {{"prompt_ids", made_up_ids(40)}, {"max_tokens", 2}};
  const Json first = generate(request), second = generate(request);
  EXPECT_EQ(first["usage"]["cached_tokens"], 0);
  EXPECT_EQ(second["usage"]["cached_tokens"], 32);
  EXPECT_EQ(first["ids"], second["ids"]);
}

// Step 4's chapter: without salts, a client that guesses another's prompt sees in cached_tokens whether the
// guess is right. With a salt for each client it sees nothing.
TEST_F(AGenerationServer, TellsNobodyOfAnotherSaltWhatIsCached) {
  const auto text_with = [](int digit) {
    return "The secret number of the castle gate, which the old king told nobody but his daughter, is " +
           std::to_string(digit) + ". Once upon a time there was a king who had a daughter, and she said";
  };
  struct Form {
    std::string path, salt;
    std::function<std::int64_t(const Json& answer)> cached;
  };
  const auto own = [](const Json& answer) { return answer["usage"]["cached_tokens"].get<std::int64_t>(); };
  const auto openai = [](const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>();
  };
  const Form forms[] = {{"/generate", "salt", own},
                        {"/generate", "cache_salt", own},
                        {"/v1/completions", "cache_salt", openai},
                        {"/v1/completions", "salt", openai}};
  constexpr int secret = 7;
  for (const Kind kind : {Kind::sharing, Kind::tiered}) {
    for (const Form& form : forms) {
      SCOPED_TRACE(name_of(kind) + ": " + form.salt + " in " + form.path);
      start({.kind = kind});
      const auto cached = [&](int digit, const Json& salt) {
        Json request = {{"prompt", text_with(digit)}, {"max_tokens", 1}};
        request[form.salt] = salt;
        return form.cached(post(request, form.path).json());
      };
      EXPECT_EQ(cached(secret, "alice"), 0);
      // Each candidate is asked for once: the attacker's own requests cache what the candidates have in
      // common.
      const auto found = [&](const Json& salt) {
        const std::int64_t first = cached(0, salt), common = cached(1, salt);
        EXPECT_TRUE(salt == "alice" || first == 0) << "nothing is there but alice's";
        std::vector<int> beyond;
        for (int digit = 2; digit < 10; ++digit) {
          if (cached(digit, salt) > common) beyond.push_back(digit);
        }
        return beyond;
      };
      EXPECT_EQ(found("mallory"), std::vector<int>{});
      EXPECT_EQ(found(nullptr), std::vector<int>{});
      EXPECT_EQ(found("alice"), std::vector<int>{secret}) << "with her salt he would find it";
      TearDown();
    }
  }
}

TEST_F(AGenerationServer, SharesThePinnedPrefixWithItsOwnSaltAlone) {
  const std::vector<std::int32_t> prefix = made_up_ids(32);
  start({.blocks = 6, .pinned = prefix});
  std::vector<std::int32_t> prompt = prefix;
  prompt.resize(80, 7);
  const auto ask = [&](const Json& salt) {
    return post({{"prompt_ids", prompt}, {"max_tokens", 1}, {"cache_salt", salt}});
  };
  EXPECT_EQ(ask(nullptr).json()["usage"]["cached_tokens"], 32);
  EXPECT_EQ(refusal({{"prompt_ids", prompt}, {"cache_salt", "alice"}}), Refusal(422, "prompt_ids"))
      << "two of the six blocks are pinned, and of the others it needs five";
  prompt.resize(64);
  EXPECT_EQ(ask("alice").json()["usage"]["cached_tokens"], 0);
}

TEST_F(AGenerationServer, KeepsASaltThroughSamplesThatForkAndComeBack) {
  start({.blocks = 12, .scheduler = {.max_batch_tokens = 64, .max_sequences = 4, .preempt_every = 3}});
  const Json request = {{"prompt_ids", made_up_ids(40)}, {"n", 3}, {"max_tokens", 20}, {"temperature", 1}};
  const auto with_salt = [&](const Json& salt) {
    Json salted = request;
    salted["cache_salt"] = salt;
    return generate(salted);
  };
  const Json alice = with_salt("alice"), mallory = with_salt("mallory");
  EXPECT_EQ(alice["usage"]["cached_tokens"], 0);
  EXPECT_EQ(mallory["usage"]["cached_tokens"], 0);
  EXPECT_EQ(mallory["samples"], alice["samples"]) << "a salt changes no answer";
  const auto cached = [&](const Json& sample, const Json& salt) {
    std::vector<std::int32_t> ids = made_up_ids(40);
    for (const Json& id : sample["ids"]) ids.push_back(id);
    return generate({{"prompt_ids", ids}, {"max_tokens", 0}, {"cache_salt", salt}})["usage"]["cached_tokens"];
  };
  for (const Json& sample : mallory["samples"])
    EXPECT_EQ(cached(sample, "mallory"), 48) << "prompt and output";
  for (std::size_t n = 0; n < 3; ++n)
    EXPECT_EQ(cached(mallory["samples"][n], n == 0 ? Json(nullptr) : Json("bob " + std::to_string(n))), 0);
}

TEST_F(AGenerationServer, TakesASaltWhereNothingIsShared) {
  for (const Kind kind : kAllKinds) {
    start({.kind = kind});
    const Json plain = generate({{"prompt", kPrompt}, {"max_tokens", 8}});
    EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 8}, {"salt", "x"}})["ids"], plain["ids"]);
    EXPECT_EQ(post({{"prompt", kPrompt}, {"cache_salt", "x"}}, "/v1/completions").status, 200);
    TearDown();
  }
}

// TK1, TK2, TK9: wild texts, in a stream and whole, with characters that come in parts and bytes that are no
// characters.
TEST_F(AGenerationServer, LogsARequestBeforeItsClientHasTheAnswer) {
  for (const Kind kind : kAllKinds) {
    log_requests();
    start({.kind = kind});
    generate({{"prompt_ids", made_up_ids(40)}, {"max_tokens", 5}, {"ignore_eos", true}});
    ASSERT_EQ(logged().size(), 1U) << name_of(kind);
    stream({{"prompt_ids", made_up_ids(41)}, {"max_tokens", 3}, {"ignore_eos", true}});
    ASSERT_EQ(logged().size(), 2U) << name_of(kind);
    generate({{"prompt_ids", made_up_ids(32)}, {"max_tokens", 0}});
    ASSERT_EQ(logged().size(), 3U) << name_of(kind);
    const Json first = logged()[0], second = logged()[1], third = logged()[2];
    std::vector<std::string> names;
    for (const auto& [name, value] : first.items()) names.push_back(name);
    EXPECT_EQ(names, std::vector<std::string>({"hash_ids", "input_length", "output_length", "timestamp"}));
    EXPECT_EQ(first["input_length"], 40);
    EXPECT_EQ(first["output_length"], 5);
    EXPECT_EQ(second["input_length"], 41);
    EXPECT_EQ(second["output_length"], 3);
    EXPECT_EQ(third["output_length"], 0) << "a prompt alone";
    EXPECT_GE(first["timestamp"], 0);
    EXPECT_GE(second["timestamp"], first["timestamp"]);
    ASSERT_EQ(first["hash_ids"].size(), 3U);
    for (const std::size_t block : {0U, 1U}) {
      EXPECT_EQ(second["hash_ids"][block], first["hash_ids"][block]);
      EXPECT_EQ(third["hash_ids"][block], first["hash_ids"][block]);
    }
    EXPECT_NE(second["hash_ids"][2], first["hash_ids"][2]);
    EXPECT_EQ(third["hash_ids"].size(), 2U);
    TearDown();
  }
}

TEST_F(AGenerationServer, LogsEachSampleAndWhatEndedItsText) {
  log_requests();
  start();
  const Json answer =
      generate({{"prompt", kPrompt}, {"n", 3}, {"max_tokens", 20}, {"temperature", 2}, {"stop", {"e"}}});
  std::multiset<std::size_t> expected, lengths;
  for (const Json& sample : answer["samples"]) expected.insert(sample["ids"].size());
  for (const Json& line : logged()) {
    lengths.insert(line["output_length"].get<std::size_t>());
    EXPECT_EQ(line["hash_ids"], logged()[0]["hash_ids"]);
    EXPECT_EQ(line["timestamp"], logged()[0]["timestamp"]);
    EXPECT_EQ(line["input_length"], 3);
  }
  EXPECT_EQ(lengths, expected);
}

TEST_F(AGenerationServer, LogsNoRequestThatItRefuses) {
  log_requests();
  start({.blocks = 4});
  EXPECT_EQ(post({{"prompt_ids", made_up_ids(65)}, {"max_tokens", 1}}).status, 422) << "more than the pool";
  EXPECT_EQ(post({{"prompt_ids", made_up_ids(5)}, {"max_tokens", -1}}).status, 400);
  EXPECT_TRUE(logged().empty());
}

// What the engine computes: a system prompt is not put in front.
TEST_F(AGenerationServer, LogsThePromptAsItIsBesideAPinnedPrefix) {
  log_requests();
  start({.pinned = made_up_ids(40)});
  const Json found = generate({{"prompt_ids", made_up_ids(40)}, {"max_tokens", 1}});
  EXPECT_GT(found["usage"]["cached_tokens"], 0);
  generate({{"prompt_ids", made_up_ids(20, 1)}, {"max_tokens", 1}});
  ASSERT_EQ(logged().size(), 2U);
  EXPECT_EQ(logged()[0]["hash_ids"].size(), 3U);
  EXPECT_EQ(logged()[1]["hash_ids"].size(), 2U);
  EXPECT_EQ(logged()[1]["input_length"], 20);
}

// The engine is held before a pass, so that it is known where each client leaves.
TEST_F(AGenerationServer, LogsWhatWasComputedForClientsThatLeave) {
  log_requests();
  start({.scheduler = {.max_batch_tokens = 64, .max_sequences = 1}});
  gate_.close();
  HttpClient in_its_output = open_stream({{"prompt_ids", made_up_ids(20)}, {"max_tokens", 200}}, 0);
  gate_.wait_for(1);  // it is admitted
  HttpClient waits = open_stream({{"prompt_ids", made_up_ids(5)}, {"max_tokens", 200}}, 0);
  wait_until_waiting(1);
  gate_.let(2);
  gate_.wait_for(3);
  in_its_output.hang_up();
  waits.hang_up();
  wait_for_departures(2);
  gate_.open();
  wait_for_ends("cancelled", 2);
  ASSERT_EQ(logged().size(), 1U) << "the other one was never admitted";
  EXPECT_EQ(logged()[0]["input_length"], 20);
  EXPECT_EQ(logged()[0]["output_length"], 3) << "the pass at the gate goes on";

  gate_.close();
  HttpClient in_its_prompt = open_stream({{"prompt_ids", made_up_ids(200)}, {"max_tokens", 9}}, 0);
  gate_.let(1);
  gate_.wait_for(2);
  in_its_prompt.hang_up();
  wait_for_departures(3);
  gate_.open();
  wait_for_ends("cancelled", 3);
  ASSERT_EQ(logged().size(), 2U);
  EXPECT_EQ(logged()[1]["input_length"], 200);
  EXPECT_EQ(logged()[1]["output_length"], 0);
}

TEST_F(AGenerationServer, LogsManyRequestsAtOnceEachInALineOfItsOwn) {
  constexpr int kClients = 24;
  log_requests();
  start({.blocks = 24});
  std::vector<HttpClient> clients;
  for (int n = 0; n < kClients; ++n) {
    const Json body = {{"prompt_ids", made_up_ids(30 + n, n)}, {"max_tokens", n}, {"ignore_eos", true}};
    clients.push_back(connect());
    clients.back().send_request("POST", "/generate", body.dump());
  }
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
  std::set<int> lengths;
  for (const Json& line : logged()) {
    lengths.insert(line["output_length"].get<int>());
    EXPECT_EQ(line["input_length"], 30 + line["output_length"].get<int>());
  }
  EXPECT_EQ(lengths.size(), 0U + kClients);
}

// A reader of the log knows what a pool without end finds: the blocks at the prompt's beginning that an
// earlier line has, but for the last token.
TEST_F(AGenerationServer, LogsNumbersThatTellWhatTheCacheFinds) {
  log_requests();
  start({.blocks = 2'000});
  std::vector<std::int64_t> found, expected;
  for (int n = 0; n < 60; ++n) {
    std::vector<std::int32_t> prompt = made_up_ids(1 + n * 29 % 90, n % 3);
    for (int other = 0; other < n % 5; ++other) prompt.push_back(n + other);
    const Json salt = n % 4 == 0 ? Json("alice") : Json(nullptr);
    found.push_back(generate(
        {{"prompt_ids", prompt}, {"max_tokens", 1}, {"cache_salt", salt}})["usage"]["cached_tokens"]);
  }
  std::set<std::uint64_t> seen;
  for (const Json& line : logged()) {
    const std::vector<std::uint64_t> numbers = line["hash_ids"];
    const std::int64_t length = line["input_length"], most = (length - 1) / kBlockSize;
    const auto full = numbers.begin() + length / kBlockSize;
    const auto first_new =
        std::find_if(numbers.begin(), full, [&](auto block) { return !seen.contains(block); });
    expected.push_back(std::min<std::int64_t>(first_new - numbers.begin(), most) * kBlockSize);
    seen.insert(numbers.begin(), full);
  }
  EXPECT_EQ(found, expected);
  EXPECT_GT(*std::max_element(found.begin(), found.end()), 3 * kBlockSize);
}

TEST_F(AGenerationServer, StreamsTheSameTextInWholeCharacters) {
  start();
  for (int seed = 0; seed < 12; ++seed) {
    Json request = {{"prompt", kPrompt}, {"max_tokens", 40}, {"seed", seed}, {"ignore_eos", true}};
    request["temperature"] = seed == 0 ? 0.0 : seed < 6 ? 1.0 : 50.0;
    const Json whole = generate(request);
    std::string text;
    std::vector<Json> ids;
    const std::vector<Json> parts = stream(request);
    for (const Json& part : parts) {
      EXPECT_FALSE(find_invalid_utf8(part["text"].get<std::string>()));
      text += part["text"];
      if (part.contains("id")) ids.push_back(part["id"]);
      EXPECT_EQ(part.contains("finish_reason"), &part == &parts.back());
    }
    EXPECT_EQ(text, whole["text"].get<std::string>());
    EXPECT_EQ(Json(ids), whole["ids"]);
    EXPECT_EQ(parts.back()["finish_reason"], whole["finish_reason"]);
    EXPECT_EQ(parts.back()["usage"]["generated_tokens"], whole["usage"]["generated_tokens"]);
    EXPECT_TRUE(parts.back().contains("timings"));
  }
}

/// Buffers as small as the system has them, and a client that may take its time.
Served to_a_slow_reader() {
  Served served;
  served.blocks = 1024;
  served.server.http.unsent_bytes = 2 << 10;
  served.server.http.socket_bytes = 4 << 10;
  served.server.http.write = kForEver * 10;
  return served;
}

// The memory of a waiting answer grows by its text and ids, not by one event for each.
TEST_F(AGenerationServer, JoinsTheTokensOfASampleForAClientThatReadsSlowly) {
  start(to_a_slow_reader());
  Json request = {{"prompt", kPrompt}, {"n", 8},           {"max_tokens", 150},
                  {"seed", 1},         {"temperature", 1}, {"ignore_eos", true}};
  const Json whole = generate(request);
  request["stream"] = true;
  HttpClient client(port_of(server_->address()), /*receive_buffer=*/4 << 10);
  client.send_request("POST", "/generate", request.dump());
  while (door_->status(kForEver).totals.requests < 2)
    std::this_thread::yield();  // all is computed, little read
  const std::vector<Json> parts = read_stream(client);
  std::vector<std::string> texts(8), reasons(8);
  std::vector<std::vector<Json>> ids(8);
  for (const Json& part : parts) {
    const auto sample = part["sample"].get<std::size_t>();
    EXPECT_FALSE(part.contains("id") && part.contains("ids"));
    texts[sample] += part["text"];
    if (part.contains("id")) ids[sample].push_back(part["id"]);
    if (part.contains("ids")) {
      EXPECT_GT(part["ids"].size(), 1U);
      for (const Json& id : part["ids"]) ids[sample].push_back(id);
    }
    EXPECT_EQ(reasons[sample], "") << "something is told after the end";
    reasons[sample] = part.value("finish_reason", "");
    EXPECT_EQ(part.contains("usage"), &part == &parts.back());
  }
  for (std::size_t sample = 0; sample < 8; ++sample) {
    EXPECT_EQ(texts[sample], whole["samples"][sample]["text"].get<std::string>());
    EXPECT_EQ(Json(ids[sample]), whole["samples"][sample]["ids"]);
    EXPECT_EQ(reasons[sample], "length");
  }
  EXPECT_LT(parts.size(), 8U * 150 / 2);
}

TEST_F(AGenerationServer, JoinsTheTextOfAChoiceForAClientOfOpenAiThatReadsSlowly) {
  start(to_a_slow_reader());
  Json request = {{"prompt", kPrompt}, {"n", 8}, {"max_tokens", 150}, {"seed", 1}, {"ignore_eos", true}};
  const Json whole = post(request, "/v1/completions").json();
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  HttpClient client(port_of(server_->address()), /*receive_buffer=*/4 << 10);
  client.send_request("POST", "/v1/completions", request.dump());
  while (door_->status(kForEver).totals.requests < 2) std::this_thread::yield();
  const std::vector<Json> parts = read_stream(client);
  std::vector<std::string> texts(8);
  for (const Json& part : parts) {
    for (const Json& choice : part["choices"]) texts[choice["index"].get<std::size_t>()] += choice["text"];
  }
  for (std::size_t sample = 0; sample < 8; ++sample)
    EXPECT_EQ(texts[sample], whole["choices"][sample]["text"].get<std::string>());
  EXPECT_EQ(parts.back()["usage"], whole["usage"]);
  EXPECT_LT(parts.size(), 8U * 150 / 2);
}

TEST_F(AGenerationServer, EndsAtStopStrings) {
  start();
  const std::string text = generate({{"prompt", kPrompt}, {"max_tokens", 30}})["text"];
  const std::string stop = text.substr(20, 6);  // across tokens
  const std::string expected = text.substr(0, text.find(stop));
  for (const Json& stops : {Json(stop), Json({stop}), Json({"never there", stop})}) {
    const Json request = {{"prompt", kPrompt}, {"max_tokens", 30}, {"stop", stops}};
    const Json answer = generate(request);
    EXPECT_EQ(answer["text"], expected);
    EXPECT_EQ(answer["finish_reason"], "stop");
    std::string streamed;
    for (const Json& part : stream(request)) streamed += part["text"];
    EXPECT_EQ(streamed, expected);
  }
  EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 30}, {"stop", "never there"}})["text"], text);
}

TEST_F(AGenerationServer, GivesSeveralSamplesEachWithItsSeed) {
  for (const Kind kind : kAllKinds) {
    start({.kind = kind});
    Json request = {{"prompt", kPrompt}, {"max_tokens", 12}, {"temperature", 0.9}, {"seed", 7}, {"n", 3}};
    const Json answer = generate(request);
    ASSERT_EQ(answer["samples"].size(), 3U);
    EXPECT_EQ(answer["ids"], answer["samples"][0]["ids"]);
    EXPECT_EQ(answer["usage"]["generated_tokens"], 36);
    std::map<int, std::string> streamed;
    for (const Json& part : stream(request)) streamed[part["sample"]] += part["text"];
    request["n"] = 1;
    for (int sample = 0; sample < 3; ++sample) {
      request["seed"] = 7 + sample;
      const Json single = generate(request);
      EXPECT_EQ(answer["samples"][static_cast<std::size_t>(sample)]["ids"], single["ids"]) << name_of(kind);
      EXPECT_EQ(streamed[sample], single["text"].get<std::string>());
    }
    TearDown();
  }
}

// SP4: the seed decides, whatever runs beside the request and however often it is preempted. SC2: after a
// preemption a stream goes on unchanged. PX3: no request finds a block that is not written yet.
TEST_F(AGenerationServer, GivesEveryoneHisAnswerHoweverManyAskAtOnce) {
  for (const std::int64_t preempt_every : {0, 5}) {
    start({.kind = Kind::tiered,
           .blocks = 24,
           .scheduler = {.max_batch_tokens = 64, .max_sequences = 8, .preempt_every = preempt_every}});
    std::vector<std::thread> clients;
    std::vector<Json> answers(16);
    const auto request_of = [](int client) {
      std::vector<std::int32_t> ids = made_up_ids(8 * kBlockSize);  // a prefix of 8 blocks, and a tail
      for (const std::int32_t id : made_up_ids(1 + client, client + 1)) ids.push_back(id);
      return Json{{"prompt_ids", ids},
                  {"max_tokens", 10},
                  {"temperature", client % 2 * 0.8},
                  {"seed", 42},
                  {"ignore_eos", true}};
    };
    for (int client = 0; client < 16; ++client) {
      clients.emplace_back([&, client] {
        Json& ids = answers[static_cast<std::size_t>(client)];
        if (client % 3 != 0) {
          ids = generate(request_of(client))["ids"];
        } else {
          for (const Json& part : stream(request_of(client))) ids.push_back(part["id"]);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    for (int client = 0; client < 16; ++client) {
      const Json request = request_of(client);
      const SequenceReport expected =
          alone({request["prompt_ids"], 10, true, {.temperature = request["temperature"], .seed = 42}});
      EXPECT_EQ(answers[static_cast<std::size_t>(client)], Json(expected.output_ids)) << client;
    }
    TearDown();
  }
}

// Limits: HT10, SP1, SP2, SP8, SP9, SC3, SC12

TEST_F(AGenerationServer, KnowsWhatAbsentNullZeroAndMinusOneMean) {
  start();
  const auto tokens_of = [this](Json fields) {
    fields["prompt"] = kPrompt;
    fields["ignore_eos"] = true;
    return generate(fields)["ids"].size();
  };
  EXPECT_EQ(tokens_of({}), 64U) << "as the programs' --tokens";
  EXPECT_EQ(tokens_of({{"max_tokens", nullptr}}), 64U);
  EXPECT_EQ(tokens_of({{"max_tokens", 0}}), 0U);
  EXPECT_EQ(tokens_of({{"max_tokens", 1}}), 1U);
  EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 0}})["finish_reason"], "length");
  for (const Json& value : {Json(-1), Json(1.5), Json("5"), Json(true), Json(std::int64_t{1} << 31),
                            Json(std::uint64_t{1} << 63), Json(1e30), Json::array(), Json::object()}) {
    EXPECT_EQ(refusal({{"prompt", kPrompt}, {"max_tokens", value}}), Refusal(400, "max_tokens")) << value;
  }
  const auto ids_with = [this](const std::string& name, const Json& value) {
    Json request = {{"prompt", kPrompt}, {"max_tokens", 8}, {"temperature", 0.8}, {"seed", 3}};
    request[name] = value;
    return generate(request)["ids"];
  };
  for (const Json& off : {Json(0), Json(-1), Json(nullptr), Json(4096), Json(1'000'000'000)})
    EXPECT_EQ(ids_with("top_k", off), ids_with("top_p", 1)) << off;
  const Json greedy = ids_with("temperature", nullptr);
  for (const Json& value : {Json(0), Json(1e-6), Json(0.0)})
    EXPECT_EQ(ids_with("temperature", value), greedy);
  EXPECT_EQ(ids_with("top_k", 1), greedy);
  EXPECT_EQ(ids_with("temperature", 1e30).size(), 8U);
  EXPECT_EQ(ids_with("seed", std::uint64_t{18446744073709551615U}), ids_with("seed", -1))
      << "the same 64 bits";
}

// TK14: ids that are no ids of the model.
TEST_F(AGenerationServer, RefusesValuesThatAreWrongAndNamesTheField) {
  start();
  const std::pair<const char*, std::vector<Json>> wrong[] = {
      {"prompt", {5, true, Json::array({1}), Json::object(), ""}},
      {"prompt_ids",
       {"1,2",
        Json::array(),
        {1.5},
        {"1"},
        {-1},
        {4096},
        {1, std::int64_t{1} << 31},
        {std::uint64_t{1} << 63},
        {nullptr},
        {Json::array({1})},
        7}},
      {"temperature", {-1, -1e-9, "1", true}},
      {"top_k", {-2, 0.5, "1", std::int64_t{1} << 40}},
      {"top_p", {-0.1, 1.1, "1", false}},
      {"seed", {1.5, "1", 1e20, true}},
      {"n", {0, -1, 9, 1.5, "1"}},
      {"stop",
       {"", 5, true, Json::array({""}), Json::array({1}), Json::object(), std::string(2000, 'x'),
        std::vector<std::string>(17, "x")}},
      {"salt", {"", 5, true, Json::array({"a"}), Json::object(), std::string(257, 'x')}},
      {"cache_salt", {"", 5, true, Json::array({"a"}), Json::object(), std::string(257, 'x')}},
      {"ignore_eos", {0, "true"}},
      {"stream", {"false", 1}},
      {"add_special_tokens", {"false", 0}},
      {"max_token", {5}},
      {"model", {"fairytale"}},
  };
  for (const auto& [name, values] : wrong) {
    for (const Json& value : values) {
      Json request = {{"max_tokens", 2}};
      if (std::string_view(name) != "prompt_ids") request["prompt"] = kPrompt;
      request[name] = value;
      EXPECT_EQ(refusal(request), Refusal(400, name)) << name << ": " << value;
    }
  }
  EXPECT_EQ(refusal(Json::object()), Refusal(400, "prompt"));
  EXPECT_EQ(refusal({{"prompt", nullptr}}), Refusal(400, "prompt"));
  EXPECT_EQ(refusal({{"prompt", kPrompt}, {"prompt_ids", {1}}}), Refusal(400, "prompt_ids"));
  EXPECT_EQ(refusal({{"prompt", kPrompt}, {"cache_salt", "a"}, {"salt", "b"}}), Refusal(400, "salt"));
  for (const Json& salt : {Json(nullptr), Json("a"), Json(std::string(256, 'x'))})
    EXPECT_EQ(refusal({{"prompt", kPrompt}, {"max_tokens", 1}, {"cache_salt", salt}, {"salt", salt}}).first,
              200);
  EXPECT_EQ(generate({{"prompt", " "}, {"max_tokens", 1}})["ids"].size(), 1U);
}

/// 1 in so many objects: {"a":{"a":1}}.
std::string nested(std::size_t levels) {
  std::string text;
  for (std::size_t level = 0; level < levels; ++level) text += R"({"a":)";
  return text + "1" + std::string(levels, '}');
}

TEST_F(AGenerationServer, QuotesLittleOfABodyThatIsWrongAndNamesThePlace) {
  start();
  const std::string tabs(100'000, '\t');
  const std::string deep = nested(60);
  std::string many;
  for (int n = 0; n < 20'000; ++n) many += "\U0001F43A";
  const std::pair<std::string, std::string> wrong[] = {
      {R"({"prompt":)" + tabs + "x}", "column 100011"},
      {"{\"prompt\":\n" + tabs + "\"\x01\"}", "line 2"},
      {R"({"prompt":)" + std::string(100'000, '7') + "x}", "column 100011"},
      {R"({"n":1)" + std::string(100'000, '0') + "}", "line 1, column 1000"},
      {R"({"n":1)" + std::string(100'000, 'e') + "}", "column 8"},
      {R"({"prompt":")" + many + "\n\"}", "line 2, column 0"},
      {R"({"prompt":")" + many + R"(\ud800"})", "column"},
      {R"({"prompt":"a"} )" + many, "column"},
      {many, "column 1"},
      {R"({"prompt":"a",)" + std::string(100'000, '\n') + "\xFF}", "line 100001, column"},
      {std::string("{\n \0}", 5), "line 2, column 2"},
      {"[\"" + many + "\"]", ""},
      {R"({")" + many + R"(":1,")" + many + R"(":2})", "twice"},
      {R"({"prompt":[")" + many + R"("]})", "prompt"},
      {R"({"stop":[[")" + many + R"("]]})", "stop"},
      {R"({"stop":")" + many + R"("})", "stop"},
      {R"({"temperature":")" + many + R"("})", "temperature"},
      {R"({"temperature":)" + deep + "}", "temperature"},
      {R"({")" + many + R"(":1})", "no field"},
  };
  for (const auto& [body, place] : wrong) {
    HttpClient client = connect();
    client.send_request("POST", "/generate", body);
    const HttpResponse response = client.read_response();
    EXPECT_EQ(response.status, 400) << body.substr(0, 30);
    const std::string message = response.error()["message"];
    EXPECT_LT(response.body.size(), 800U) << body.substr(0, 30);
    EXPECT_NE(message.find(place), std::string::npos) << place << ": " << message;
    EXPECT_EQ(response.body.find("\uFFFD"), std::string::npos) << "no character is cut: " << message;
    // Of a pair of escapes neither is without the other.
    const std::size_t cut = message.rfind("...");
    EXPECT_FALSE(cut != std::string::npos && cut >= 6 && message.substr(cut - 6, 4) == "\\ud8") << message;
  }
}

TEST_F(AGenerationServer, QuotesLittleOfALongPathOrMethod) {
  start();
  std::string wolves;
  for (int n = 0; n < 1000; ++n) wolves += "%F0%9F%90%BA";
  for (const std::string front : {"/", "/x", "/xx", "/xxx"}) {
    const HttpResponse response = get(front + wolves);
    EXPECT_EQ(response.status, 404);
    EXPECT_LT(response.body.size(), 500U);
    EXPECT_EQ(response.body.find("\uFFFD"), std::string::npos) << "no character is cut: " << response.body;
  }
  HttpClient client = connect();
  client.send_request(std::string(10'000, 'X'), "/generate");
  const HttpResponse response = client.read_response();
  EXPECT_EQ(response.status, 405);
  EXPECT_LT(response.body.size(), 500U);
}

// HT5: every broken body gets an answer, and nothing more.
TEST_F(AGenerationServer, RefusesABodyThatIsNoRequest) {
  start();
  const std::string prompt = R"("prompt": "a")";
  const std::string deep(100'000, '['), deeper(100'000, '{');
  const std::string bodies[] = {std::string(),
                                std::string("{:"),
                                std::string("[]"),
                                std::string("null"),
                                std::string("''"),
                                std::string("\"\""),
                                std::string("5"),
                                std::string("NaN"),
                                deep,
                                deeper,
                                nested(100),
                                R"({"prompt": )" + deep + "}",
                                "{" + prompt + "," + prompt + "}",
                                "{" + prompt + "} x",
                                "{" + prompt + R"(, "temperature": NaN})",
                                "{" + prompt + R"(, "temperature": 1e999})",
                                "{" + prompt + R"(, "temperature": -})",
                                "{" + prompt + ",}",
                                std::string("{\"prompt\": \"\xff\"}"),
                                std::string("{\"prompt\": \"\xed\xa0\x80\"}"),
                                std::string(R"({"prompt": "\ud800"})"),
                                std::string("{\"prompt\": \"a\nb\"}"),
                                std::string("{\"prompt\": \"a\"}\0", 16),
                                std::string("\xEF\xBB\xBF\xEF\xBB\xBF{}")};
  for (const std::string& body : bodies) {
    for (const char* path : {"/generate", "/v1/completions"})
      EXPECT_EQ(refusal_of_text(body, path), Refusal(400, "")) << body.substr(0, 60);
  }
  EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 1}})["ids"].size(), 1U);
}

TEST_F(AGenerationServer, EndsAtTheContextAndRefusesAPromptThatFillsIt) {
  start();
  const std::int64_t context = model_->config().max_position_embeddings;
  const auto tokens_of = [&](std::int64_t prompt, std::int64_t max_tokens) {
    const Json answer =
        generate({{"prompt_ids", made_up_ids(prompt)}, {"max_tokens", max_tokens}, {"ignore_eos", true}});
    EXPECT_EQ(answer["finish_reason"], "length");
    return answer["ids"].size();
  };
  EXPECT_EQ(tokens_of(context - 1, 5), 1U);
  for (const std::int64_t more : {-1, 0, 1}) {
    EXPECT_EQ(tokens_of(context - 4, 4 + more),
              static_cast<std::size_t>(std::min<std::int64_t>(4, 4 + more)));
  }
  EXPECT_EQ(tokens_of(context - 4, 2'147'483'647), 4U);
  const std::int64_t passes = door_->status(kForEver).totals.passes;
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(context)}}), Refusal(422, "prompt_ids"));
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(context + 1)}}), Refusal(422, "prompt_ids"));
  std::string long_text;
  for (std::int64_t word = 0; word < context; ++word) long_text += " wolf";
  EXPECT_EQ(refusal({{"prompt", long_text}}), Refusal(422, "prompt"));
  EXPECT_EQ(refusal({{"prompt", long_text}}, "/v1/completions"), Refusal(422, "prompt"));
  EXPECT_EQ(door_->status(kForEver).totals.passes, passes);
}

TEST_F(AGenerationServer, RefusesWhatThePoolCanNeverHoldAndEndsWhatOutgrowsIt) {
  start({.kind = Kind::paged, .blocks = 8});
  HttpClient other =
      open_stream({{"prompt_ids", made_up_ids(5)}, {"max_tokens", 50}, {"ignore_eos", true}}, 1);
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(129)}}), Refusal(422, "prompt_ids"));
  const Json outgrown =
      generate({{"prompt_ids", made_up_ids(120)}, {"max_tokens", 200}, {"ignore_eos", true}});
  EXPECT_EQ(outgrown["finish_reason"], "capacity");
  EXPECT_EQ(outgrown["ids"].size(), 9U);
  EXPECT_EQ(generate({{"prompt_ids", made_up_ids(128)}, {"max_tokens", 1}})["finish_reason"], "length");
  int parts = 1;
  while (other.read_chunk()) ++parts;
  EXPECT_EQ(parts, 50 + 1);
}

// TK8: special tokens in a text are recognised, as in the programs.
TEST_F(AGenerationServer, RefusesWhatThePoolCanNeverHoldBesideAPinnedPrefix) {
  const std::vector<std::int32_t> prefix = made_up_ids(40);  // three blocks of eight
  start({.blocks = 8, .pinned = prefix});
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(80, 1)}, {"max_tokens", 0}}).first, 200);
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(81, 1)}, {"max_tokens", 0}}), Refusal(422, "prompt_ids"));
  // A prompt that begins with it finds two blocks.
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(112)}, {"max_tokens", 0}}).first, 200);
  EXPECT_EQ(refusal({{"prompt_ids", made_up_ids(113)}, {"max_tokens", 0}}), Refusal(422, "prompt_ids"));
}

TEST_F(AGenerationServer, RecognisesSpecialTokensInAPrompt) {
  start();
  const Json answer = generate({{"prompt", "<|endoftext|>"}, {"max_tokens", 3}});
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 1);
  EXPECT_EQ(answer["ids"], generate({{"prompt_ids", {0}}, {"max_tokens", 3}})["ids"]);
}

// A tokenizer may have ids beyond the model's vocabulary.
TEST_F(AGenerationServer, NamesTheTextThatHasATokenTheModelDoesNotHave) {
  const TemporaryFolder folder;
  Json file = Json::parse(read_file(checkpoint_folder("fairytale") / "tokenizer.json"));
  Json token = file["added_tokens"].at(0);
  token["id"] = model_->config().vocab_size;
  token["content"] = "<new>";
  file["added_tokens"].push_back(token);
  write_file(folder / "tokenizer.json", file.dump());
  const Tokenizer tokenizer(folder.path());
  start({.tokenizer = &tokenizer});
  for (const char* path : {"/generate", "/v1/completions"}) {
    const HttpResponse response = post({{"prompt", "hi <new>"}, {"max_tokens", 1}}, path);
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(response.error()["field"], "prompt") << path;
    const std::string message = response.error()["message"];
    EXPECT_NE(message.find("4096"), std::string::npos) << message;
    EXPECT_EQ(message.find("prompt_ids"), std::string::npos) << message;
  }
  EXPECT_EQ(post({{"prompt", "hi"}, {"max_tokens", 1}}).status, 200);
  end();  // it uses the tokenizer
}

TEST_F(AGenerationServer, WorksWithIdsAloneWhereThereIsNoTokenizer) {
  start({.has_tokenizer = false});
  const Json answer = generate({{"prompt_ids", ids_of(kPrompt)}, {"max_tokens", 4}});
  EXPECT_EQ(answer["ids"], Json(alone({ids_of(kPrompt), 4, false, {}}).output_ids));
  EXPECT_EQ(answer["text"], "");
  EXPECT_EQ(refusal({{"prompt", kPrompt}}), Refusal(400, "prompt"));
  EXPECT_EQ(refusal({{"prompt_ids", {1}}, {"stop", "x"}}), Refusal(400, "stop"));
  EXPECT_EQ(refusal({{"prompt", {1, 2}}}, "/v1/completions"), Refusal(400, "")) << "it would tell nothing";
}

// Clients that come and go

TEST_F(AGenerationServer, TellsWhoComesToAFullQueueToComeAgain) {
  start({.max_requests = 2});
  gate_.close();
  std::vector<HttpClient> clients;
  for (int n = 0; n < 2; ++n) {
    clients.push_back(connect());
    clients.back().send_request("POST", "/generate", Json{{"prompt", kPrompt}, {"max_tokens", 2}}.dump());
    if (n == 0) gate_.wait_for(1);
  }
  // One of the requests that come together is too many; which one, is open.
  HttpClient third = connect();
  third.send_request("POST", "/generate", Json{{"prompt", kPrompt}, {"max_tokens", 2}}.dump());
  clients.push_back(std::move(third));
  while (get("/metrics").body.find("code=\"429\"} 1\n") == std::string::npos) std::this_thread::yield();
  gate_.open();
  int refused = 0;
  for (HttpClient& client : clients) {
    const HttpResponse response = client.read_response();
    if (response.status == 200) continue;
    ++refused;
    EXPECT_EQ(response.status, 429);
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_EQ(response.error()["type"], "rate_limit_error");
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 2}})["ids"].size(), 2U);
}

// HT1: one pass after a client has left, its request holds nothing, wherever the request is.
TEST_F(AGenerationServer, FreesWithinOnePassWhatAClientHeldThatLeaves) {
  const Json request = {{"prompt_ids", made_up_ids(200)}, {"max_tokens", 100}, {"ignore_eos", true}};
  struct Moment {
    const char* name;
    int passes;  // done before the client leaves
    bool stream;
  };
  // A pass computes 64 rows, so the prompt takes four.
  for (const Moment& moment : {Moment{"in its prompt", 1, true}, Moment{"in its prompt, no stream", 1, false},
                               Moment{"before its first token", 3, true}, Moment{"in its stream", 6, true},
                               Moment{"while it waits for the whole", 6, false}}) {
    start();
    gate_.close();
    Json body = request;
    body["stream"] = moment.stream;
    HttpClient client = connect();
    client.send_request("POST", "/generate", body.dump());
    gate_.let(moment.passes);
    gate_.wait_for(moment.passes + 1);
    client.hang_up();
    wait_for_departures(1);
    gate_.let(1);
    ASSERT_TRUE(door_->wait_until_idle(kForEver)) << moment.name;
    const EngineStatus status = door_->status(kForEver);
    EXPECT_EQ(status.totals.passes, moment.passes + 1) << moment.name;
    EXPECT_EQ(status.blocks.in_use, 0) << moment.name;
    TearDown();
  }
}

TEST_F(AGenerationServer, FreesThePlaceInTheQueueOfAClientThatLeaves) {
  start({.scheduler = {.max_batch_tokens = 64, .max_sequences = 1}});
  gate_.close();
  const Json request = {{"prompt", kPrompt}, {"max_tokens", 20}, {"ignore_eos", true}};
  HttpClient neighbour = connect();
  neighbour.send_request("POST", "/generate", request.dump());
  gate_.wait_for(1);
  HttpClient waiting = connect();
  waiting.send_request("POST", "/generate", request.dump());
  gate_.let(1);
  gate_.wait_for(2);
  waiting.hang_up();
  wait_for_departures(1);
  gate_.open();
  EXPECT_EQ(neighbour.read_response().json()["ids"], Json(alone({ids_of(kPrompt), 20, true, {}}).output_ids));
  ASSERT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(door_->status(kForEver).totals.generated_tokens, 20);
}

// HT8: GET /health is answered beside many streams, many silent connections and some slow ones.
TEST_F(AGenerationServer, SaysHowItIsBesideManyThatAreBusyIdleOrSlow) {
  start({.max_requests = 64});
  gate_.close();
  std::vector<HttpClient> streams, others;
  for (int n = 0; n < 64; ++n)
    streams.push_back(open_stream({{"prompt", kPrompt}, {"max_tokens", 3}, {"ignore_eos", true}}, 0));
  for (int n = 0; n < 64 + 8; ++n) {
    others.push_back(connect());
    if (n >= 64) others.back().send("P");
  }
  EXPECT_EQ(get("/health").status, 200) << "although the engine is held in a pass";
  gate_.open();
  for (HttpClient& client : streams) {
    const HttpResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  }
  EXPECT_EQ(get("/health").json()["running"], 0);
}

/// A body that a reader reads for long: the gate holds the reader.
std::string long_body() {
  std::string text;
  for (std::int64_t n = 0; n <= AskedCapacity::kLong; ++n) text += " wolf";
  return std::string(900'000, ' ') + Json{{"prompt", text}, {"max_tokens", 2}}.dump();
}

// HT8: a client whose long text is being read, which takes longest of all, does not delay a client with a
// short text.
TEST_F(AGenerationServer, AnswersShortRequestsBesideManyLongTexts) {
  start();
  reading_.close();
  std::vector<HttpClient> clients;
  for (int n = 0; n < 6; ++n) {
    clients.push_back(connect());
    clients.back().send_request("POST", "/generate", long_body());
  }
  reading_.wait_for(1);
  wait_until_waiting(6);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(generate({{"prompt", kPrompt}, {"max_tokens", 2}})["ids"].size(), 2U);
  EXPECT_EQ(asked_->encoded(), 1 + 1) << "the first of the long ones, and the short one";
  reading_.open();
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(AGenerationServer, EncodesNoTextOfAClientThatHasLeft) {
  start();
  reading_.close();
  constexpr int kGone = 20;
  HttpClient first = connect();
  first.send_request("POST", "/generate", long_body());
  reading_.wait_for(1);
  for (int n = 0; n < kGone; ++n) connect().send_request("POST", "/generate", long_body());
  wait_for_departures(kGone);
  EXPECT_EQ(get("/health").json()["waiting"], 1);
  reading_.open();
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(connect().post("/generate", {{"prompt", kPrompt}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(asked_->encoded(), 2) << "the first and the last";
}

TEST_F(AGenerationServer, CountsTextsThatAreStillToBeReadAsWaiting) {
  start({.max_requests = 3});
  reading_.close();
  std::vector<HttpClient> clients;
  for (int n = 0; n < 3; ++n) {
    clients.push_back(connect());
    clients.back().send_request("POST", "/generate", long_body());
  }
  wait_until_waiting(3);
  const HttpResponse refused = post({{"prompt", kPrompt}, {"max_tokens", 2}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  clients.pop_back();
  wait_for_departures(1);
  EXPECT_EQ(post({{"prompt", kPrompt}, {"max_tokens", 2}}).status, 200) << "the one that left made room";
  reading_.open();
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(AGenerationServer, RefusesATextThatIsTooLongWithoutEncodingIt) {
  start();
  std::string text;
  while (text.size() < 900'000) text += "the";
  const HttpResponse response = post({{"prompt", text}});
  EXPECT_EQ(response.status, 422);
  EXPECT_EQ(response.error()["field"], "prompt");
  EXPECT_NE(response.error()["message"].get<std::string>().find("900000 bytes"), std::string::npos);
  EXPECT_EQ(refusal({{"prompt", text}}, "/v1/completions"), Refusal(422, "prompt"));
}

TEST_F(AGenerationServer, AnswersAtOnceWhoIsStillToBeReadWhenItEnds) {
  start();
  reading_.close();
  HttpClient read = connect(), unread = connect();
  read.send_request("POST", "/generate", long_body());
  reading_.wait_for(1);
  unread.send_request("POST", "/generate", long_body());
  wait_until_waiting(2);
  server_->end();
  EXPECT_EQ(unread.read_response().status, 503);
  reading_.open();
  EXPECT_EQ(read.read_response().status, 503);
  serving_.join();
  EXPECT_EQ(asked_->encoded(), 1);
}

// As many as may run and as many as may wait come at once, and then one more.
TEST_F(AGenerationServer, TakesABurstOfAllThatMayRunAndAllThatMayWait) {
  constexpr int kRunning = 4, kWaiting = 20;
  start({.scheduler = {.max_batch_tokens = 64, .max_sequences = kRunning},
         .max_requests = kRunning + kWaiting});
  gate_.close();
  const std::string request = Json{{"prompt", kPrompt}, {"max_tokens", 3}}.dump();
  std::vector<HttpClient> clients;
  for (int n = 0; n < kRunning + kWaiting; ++n) {
    clients.push_back(connect());
    clients.back().send_request("POST", "/generate", request);
  }
  Json health;
  do {
    health = get("/health").json();
  } while (health["waiting"].get<int>() + health["running"].get<int>() < kRunning + kWaiting);
  const HttpResponse refused = post({{"prompt", kPrompt}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "3")
      << "24 requests, of which nobody knows how long they take";
  EXPECT_EQ(post({{"prompt", kPrompt}}).headers.at("retry-after"), "4")
      << "25, with the one that comes again";
  gate_.open();
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(post({{"prompt", kPrompt}}).status, 200);
}

TEST_F(AGenerationServer, TellsOfARequestInItsFirstPasses) {
  start();
  gate_.close();
  const HttpClient stream = open_stream({{"prompt", kPrompt}, {"max_tokens", 3}}, 0);
  gate_.wait_for(1);
  const HttpClient another = open_stream({{"prompt", kPrompt}, {"max_tokens", 3}}, 0);
  Json health;
  do {
    health = get("/health").json();
  } while (health["waiting"] == 0);  // the other request may be on its way
  EXPECT_EQ(health["running"], 1);
  EXPECT_EQ(health["waiting"], 1);
}

// HT1, HT4: a client leaves at any moment, also at the last token, and a neighbour goes on.
TEST_F(AGenerationServer, SurvivesHundredsThatLeaveAtAnyMoment) {
  start({.kind = Kind::tiered, .blocks = 64});
  const Json request = {{"prompt", kPrompt}, {"max_tokens", 3}, {"ignore_eos", true}};
  const Json long_request = {{"prompt", kPrompt}, {"max_tokens", 200}, {"ignore_eos", true}};
  const Json expected = generate(long_request)["ids"];
  std::atomic<bool> done = false;
  std::thread neighbour([&] {
    do {
      EXPECT_EQ(generate(long_request)["ids"], expected);
    } while (!done);
  });
  for (int n = 0; n < 500; ++n) open_stream(request, n % 4);  // the fourth part is the end of the stream
  for (int n = 0; n < 50; ++n) connect().send_request("POST", "/generate", request.dump());
  done = true;
  neighbour.join();
  EXPECT_EQ(get("/health").status, 200);
}

// The server's own life

// HT9: the server's health while it loads, when it is ready, and after it has failed.
TEST_F(AGenerationServer, SaysThatItIsLoadingAndThenThatItIsReady) {
  listen();
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").json()["status"], "loading");
  EXPECT_EQ(get("/health").headers.at("retry-after"), "1");
  EXPECT_EQ(post({{"prompt", kPrompt}}).status, 503);
  EXPECT_EQ(get("/state").status, 503);
  EXPECT_NE(get("/metrics").body.find("kvcache_up 0\n"), std::string::npos);
  EXPECT_EQ(get("/").status, 200);
  load({});
  const HttpResponse health = get("/health");
  EXPECT_EQ(health.status, 200);
  const Json json = health.json();
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["model"], "fairytale");
  EXPECT_GE(json["uptime_s"], 0.0);
  EXPECT_EQ(json["blocks"],
            Json({{"block_size", 16}, {"total", 256}, {"free", 256}, {"cached", 0}, {"in_use", 0}}));
  EXPECT_EQ(json["running"], 0);
  EXPECT_EQ(json["waiting"], 0);
  EXPECT_EQ(json["counters"]["preemptions"], 0);
}

TEST_F(AGenerationServer, SaysThatItsEngineHasFailed) {
  start();
  store_->fail_at(3);
  HttpClient stream = open_stream({{"prompt", kPrompt}, {"max_tokens", 50}}, 2);
  const std::optional<std::string> last = stream.read_chunk();
  ASSERT_TRUE(last);
  EXPECT_NE(last->find("\"finish_reason\":\"error\""), std::string::npos) << *last;
  const HttpResponse health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["status"], "failed");
  EXPECT_EQ(health.json()["failure"], "the device is gone");
  EXPECT_EQ(post({{"prompt", kPrompt}}).status, 503);
  EXPECT_NE(get("/metrics").body.find("kvcache_up 0\n"), std::string::npos);
  end();
  EXPECT_EQ(failure_, "the engine failed: the device is gone");
}

TEST_F(AGenerationServer, AnswersWhoWaitedForTheWholeThatItsEngineHasFailed) {
  start();
  store_->fail_at(3);
  EXPECT_EQ(post({{"prompt", kPrompt}, {"max_tokens", 50}, {"n", 2}}).status, 503);
}

TEST_F(AGenerationServer, AddsSpecialTokensUnlessARequestSaysNot) {
  const Tokenizer llama(checkpoint_folder("llama-gqa"));
  start();
  ServedModel model{"llama", &model_->config(), &llama, cache_->manager.get(), 8};
  const auto ids = [&](Json request, bool openai) {
    request["prompt"] = "<s>user";
    return openai ? read_completion_request(request.dump(), model, "", 0).request.prompt_ids
                  : read_generate_request(request.dump(), model).request.prompt_ids;
  };
  using Ids = std::vector<std::int32_t>;
  const Ids with = {1, 1, 335, 559, 353}, without = {1, 335, 559, 353};
  for (const bool openai : {false, true}) {
    model.add_special_tokens = true;
    EXPECT_EQ(ids(Json::object(), openai), with);
    EXPECT_EQ(ids({{"add_special_tokens", nullptr}}, openai), with);
    EXPECT_EQ(ids({{"add_special_tokens", false}}, openai), without);
    model.add_special_tokens = false;  // as --no-special-tokens says
    EXPECT_EQ(ids(Json::object(), openai), without);
    EXPECT_EQ(ids({{"add_special_tokens", true}}, openai), with);
    EXPECT_THROW(ids({{"add_special_tokens", 1}}, openai), RequestError);
  }
}

/// A tokenizer of the letters a and b, whose pattern spends the whole budget before it fails to match.
struct SlowTokenizer {
  explicit SlowTokenizer(const char* pattern) {
    const Json file = {
        {"model", {{"vocab", {{"a", 1}, {"b", 2}}}, {"merges", Json::array()}}},
        {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}}};
    write_file(folder / "tokenizer.json", file.dump());
  }
  TemporaryFolder folder;
};

TEST_F(AGenerationServer, RefusesATextThatItsTokenizerTakesTooLongFor) {
  const SlowTokenizer slow("(?:a|aa)+[bc]");
  const Tokenizer tokenizer(slow.folder.path());
  start({.tokenizer = &tokenizer});
  const HttpResponse response = post({{"prompt", std::string(5000, 'a')}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["field"], "prompt");
  EXPECT_NE(response.body.find("steps for each byte of the text"), std::string::npos) << response.body;
  const Json answer = post({{"prompt", "xa\xC3\xA9"}, {"max_tokens", 1}}).json();
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 1);
  EXPECT_EQ(answer["usage"]["bytes_left_out"], 3);
  EXPECT_FALSE(post({{"prompt", "a"}, {"max_tokens", 1}}).json()["usage"].contains("bytes_left_out"));
}

TEST_F(AGenerationServer, SaysOfATextThatIsLostAltogetherHowManyBytesHaveNoToken) {
  const SlowTokenizer ab("[ab]");
  const Tokenizer tokenizer(ab.folder.path());
  start({.tokenizer = &tokenizer});
  for (const char* form : {"/generate", "/v1/completions"}) {
    const HttpResponse lost = post({{"prompt", "x\xC3\xA9"}, {"max_tokens", 1}}, form);
    EXPECT_EQ(lost.status, 400);
    EXPECT_EQ(lost.error()["field"], "prompt");
    EXPECT_EQ(lost.error()["message"],
              "prompt: the vocabulary has no token for any of the text, bytes left out: 3; give other text");
    EXPECT_EQ(post({{"prompt", ""}}, form).error()["message"], "prompt has no token; give at least one");
  }
}

TEST_F(AGenerationServer, TellsInTheFormOfOpenAiHowManyBytesHaveNoToken) {
  const SlowTokenizer ab("[ab]");
  const Tokenizer tokenizer(ab.folder.path());
  start({.tokenizer = &tokenizer});
  Json request = {{"prompt", "xa\xC3\xA9"}, {"max_tokens", 1}};
  EXPECT_EQ(post(request, "/v1/completions").json()["usage"]["bytes_left_out"], 3);
  request["prompt"] = Json::array({"xa\xC3\xA9"});
  EXPECT_EQ(post(request, "/v1/completions").json()["usage"]["bytes_left_out"], 3);
  request["stream_options"] = {{"include_usage", true}};
  EXPECT_EQ(stream(request, "/v1/completions").back()["usage"]["bytes_left_out"], 3);
  for (const Json& whole : {Json("a"), Json(std::vector<int>{1, 2})}) {
    const Json answer = post({{"prompt", whole}, {"max_tokens", 1}}, "/v1/completions").json();
    EXPECT_TRUE(answer["usage"].is_object()) << answer;
    EXPECT_FALSE(answer["usage"].contains("bytes_left_out")) << whole;
  }
}

TEST_F(AGenerationServer, EndsWithoutWaitingForTheTextThatIsEncoded) {
  const SlowTokenizer slow("(?:a|aa)+[bc]");
  const Tokenizer tokenizer(slow.folder.path());
  start({.tokenizer = &tokenizer});
  // The budget would last for seconds, and then the answer would be a 400.
  HttpClient client = connect();
  client.send_request("POST", "/generate", Json{{"prompt", std::string(1'000'000, 'a')}}.dump());
  while (get("/health").json()["waiting"] != 1) {  // until all of it has come
  }
  server_->end();
  EXPECT_EQ(client.read_response().status, 503);
}

TEST_F(AGenerationServer, FinishesWhatRunsBeforeItEnds) {
  start();
  gate_.close();
  HttpClient running = connect(), idle = connect();
  running.send_request("POST", "/generate", Json{{"prompt", kPrompt}, {"max_tokens", 9}}.dump());
  gate_.wait_for(1);
  EXPECT_EQ(idle.get("/").status, 200);
  server_->end();
  HttpResponse late = idle.post("/generate", {{"prompt", kPrompt}});
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.headers.at("connection"), "close");
  EXPECT_EQ(get("/health").json()["status"], "stopping");
  gate_.open();
  EXPECT_EQ(running.read_response().json()["ids"].size(), 9U);
  serving_.join();
}

TEST_F(AGenerationServer, CancelsWhatDoesNotFinishInTime) {
  GenerationServerSettings settings;
  settings.finish = milliseconds(1);
  start({.server = settings});
  gate_.close();
  const Json request = {{"prompt", kPrompt}, {"max_tokens", 900}, {"ignore_eos", true}};
  gate_.let(2);
  HttpClient stream = open_stream(request, 1);
  HttpClient whole = connect();
  whole.send_request("POST", "/generate", request.dump());
  gate_.wait_for(2);
  server_->end();
  gate_.open();
  std::string last;
  while (const std::optional<std::string> chunk = stream.read_chunk()) {
    if (chunk->find("[DONE]") == std::string::npos) last = *chunk;
  }
  EXPECT_NE(last.find("\"finish_reason\":\"cancelled\""), std::string::npos) << last;
  EXPECT_EQ(whole.read_response().status, 503);
  serving_.join();
}

// A pass may take longer than the time to end: clients still hear of the end, and the server ends.
TEST_F(AGenerationServer, EndsWithoutItsEngineWhereAPassDoesNotEnd) {
  GenerationServerSettings settings;
  settings.finish = milliseconds(1);
  start({.server = settings});
  gate_.close();
  Json request = {{"prompt", kPrompt}, {"max_tokens", 900}, {"ignore_eos", true}, {"n", 2}};
  HttpClient stream = open_stream(request, 0);
  gate_.wait_for(1);
  gate_.let(1);  // the first token of the stream, and of nobody else
  EXPECT_EQ(stream.read_head().status, 200);
  EXPECT_TRUE(stream.read_chunk());
  gate_.wait_for(2);
  request["n"] = 1;
  HttpClient whole = connect();
  whole.send_request("POST", "/generate", request.dump());
  wait_until_waiting(1);
  server_->end();
  std::map<std::int64_t, std::string> reasons;
  std::string last;
  while (const std::optional<std::string> chunk = stream.read_chunk()) {
    last = *chunk;
    if (last == "data: [DONE]\n\n") continue;
    const Json part = Json::parse(last.substr(6));
    reasons[part["sample"]] = part.value("finish_reason", "");
  }
  EXPECT_EQ(last, "data: [DONE]\n\n");
  EXPECT_EQ(reasons, (std::map<std::int64_t, std::string>{{0, "cancelled"}, {1, "cancelled"}}));
  EXPECT_EQ(whole.read_response().status, 503);
  serving_.join();
  EXPECT_FALSE(door_->wait_until_idle(milliseconds(0))) << "its pass goes on";
}

// Other addresses

TEST_F(AGenerationServer, AnswersOnlyAtItsAddressesAndWithTheirMethods) {
  start();
  EXPECT_EQ(get("/nowhere").status, 404);
  EXPECT_EQ(get("/generate/").status, 404);
  EXPECT_EQ(get("/health?verbose=1").status, 200);
  for (const char* path : {"/generate", "/v1/completions"}) {
    const HttpResponse response = get(path);
    EXPECT_EQ(response.status, 405) << path;
    EXPECT_EQ(response.headers.at("allow"), "POST");
  }
  for (const char* path : {"/", "/health", "/metrics", "/state", "/v1/models"}) {
    const HttpResponse response = connect().post(path, Json::object());
    EXPECT_EQ(response.status, 405) << path;
    EXPECT_EQ(response.headers.at("allow"), "GET, HEAD");
  }
}

TEST_F(AGenerationServer, TellsItsModelsAndItsMetrics) {
  start();
  generate({{"prompt_ids", made_up_ids(40)}, {"max_tokens", 3}, {"ignore_eos", true}});
  generate({{"prompt_ids", made_up_ids(40)}, {"max_tokens", 3}, {"ignore_eos", true}});
  const Json models = get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "fairytale");
  EXPECT_EQ(get("/v1/models/fairytale").json(), models["data"][0]);
  EXPECT_EQ(get("/v1/models/other").status, 404);
  const HttpResponse metrics = get("/metrics");
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line : {"kvcache_up 1", "kvcache_requests_total 2", "kvcache_generated_tokens_total 6",
                           "kvcache_prefix_hits_total 2", "kvcache_blocks{state=\"in_use\"} 0",
                           "kvcache_outputs_total{reason=\"length\"} 2", "# TYPE kvcache_blocks gauge",
                           "kvcache_http_responses_total{code=\"200\"} 4"}) {
    EXPECT_NE(metrics.body.find(std::string("\n") + line + "\n"), std::string::npos) << line;
  }
}

TEST_F(AGenerationServer, ShowsWhoHoldsWhichBlocks) {
  for (const Kind kind : kAllKinds) {
    start({.kind = kind, .blocks = 32});
    gate_.close();
    gate_.let(2);
    const HttpClient stream =
        open_stream({{"prompt_ids", made_up_ids(40)}, {"max_tokens", 50}, {"ignore_eos", true}}, 2);
    gate_.wait_for(3);
    gate_.open();  // or the engine could not say how it is
    const Json state = get("/state").json();
    ASSERT_EQ(state["running"].size(), 1U) << state;
    EXPECT_GE(state["running"][0]["tokens"], 41);
    const double reserved = state["memory"]["reserved_bytes"], used = state["memory"]["used_bytes"];
    EXPECT_DOUBLE_EQ(state["memory"]["waste_percent"], 100 * (reserved - used) / reserved);
    const std::string cells = state["cells"];
    EXPECT_EQ(cells.size(), kind == Kind::flat ? 2U : 32U);
    EXPECT_FALSE(state["running"][0]["blocks"].empty());
    EXPECT_EQ(state["queue"], Json::array());
    for (const std::size_t block : state["running"][0]["blocks"]) EXPECT_EQ(cells[block], '1');
    TearDown();
  }
}

// The form of OpenAI

TEST_F(AGenerationServer, CompletesInTheFormOfOpenAi) {
  start();
  const Json own = generate({{"prompt", kPrompt}, {"max_tokens", 16}});
  Json request = {{"model", "any"}, {"prompt", kPrompt}, {"temperature", 0}, {"user", "me"}};
  const Json answer = post(request, "/v1/completions").json();
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "fairytale");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_GT(answer["created"], 1'700'000'000);
  ASSERT_EQ(answer["choices"].size(), 1U);
  EXPECT_EQ(answer["choices"][0],
            Json({{"index", 0}, {"text", own["text"]}, {"logprobs", nullptr}, {"finish_reason", "length"}}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 16);
  EXPECT_EQ(answer["usage"]["total_tokens"], 19);
  for (const Json& prompt : {Json(ids_of(kPrompt)), Json::array({kPrompt}), Json::array({ids_of(kPrompt)})}) {
    request["prompt"] = prompt;
    EXPECT_EQ(post(request, "/v1/completions").json()["choices"], answer["choices"]) << prompt;
  }
  request["stream_options"] = {{"include_usage", true}};
  std::string streamed;
  const std::vector<Json> parts = stream(request, "/v1/completions");
  for (const Json& part : parts) {
    EXPECT_EQ(part["object"], "text_completion");
    EXPECT_TRUE(part.contains("usage")) << "null, or in the last part";
    for (const Json& choice : part["choices"]) streamed += choice["text"];
  }
  EXPECT_EQ(streamed, own["text"].get<std::string>());
  EXPECT_TRUE(parts.back()["choices"].empty());
  EXPECT_EQ(parts.back()["usage"]["completion_tokens"], 16);
  EXPECT_EQ(parts[parts.size() - 2]["choices"][0]["finish_reason"], "length");
}

TEST_F(AGenerationServer, SamplesInTheFormOfOpenAi) {
  start();
  const Json request = {{"prompt", kPrompt}, {"n", 2}, {"seed", 5}, {"max_tokens", 8}, {"best_of", 2}};
  const Json answer = post(request, "/v1/completions").json();
  const Json own =
      generate({{"prompt", kPrompt}, {"n", 2}, {"seed", 5}, {"max_tokens", 8}, {"temperature", 1}});
  ASSERT_EQ(answer["choices"].size(), 2U);
  for (std::size_t sample = 0; sample < 2; ++sample)
    EXPECT_EQ(answer["choices"][sample]["text"], own["samples"][sample]["text"]);
  const auto any = [&] {
    return post({{"prompt", kPrompt}}, "/v1/completions").json()["choices"][0]["text"];
  };
  EXPECT_NE(any(), any()) << "without a seed, two texts of 16 tokens";
}

TEST_F(AGenerationServer, TellsOpenAiThatTheLengthEndedWhatOutgrewThePool) {
  start({.kind = Kind::paged, .blocks = 8});
  const Json request = {{"prompt", made_up_ids(120)}, {"max_tokens", 200}, {"ignore_eos", true}};
  EXPECT_EQ(post(request, "/v1/completions").json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(stream(request, "/v1/completions").back()["choices"][0]["finish_reason"], "length");
}

TEST_F(AGenerationServer, TakesBothNamesForTheNumberOfNewTokens) {
  start();
  const auto tokens_of = [this](Json fields) {
    fields["prompt"] = kPrompt;
    fields["ignore_eos"] = true;
    return post(fields, "/v1/completions").json()["usage"]["completion_tokens"].get<int>();
  };
  EXPECT_EQ(tokens_of({}), 16);
  EXPECT_EQ(tokens_of({{"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(tokens_of({{"max_completion_tokens", 0}}), 0);
  EXPECT_EQ(tokens_of({{"max_completion_tokens", 5}, {"max_tokens", 5}}), 5);
  EXPECT_EQ(tokens_of({{"max_completion_tokens", 5}, {"max_tokens", nullptr}}), 5);
  EXPECT_EQ(tokens_of({{"max_completion_tokens", nullptr}, {"max_tokens", 5}}), 5);
  for (const Json& value : {Json(6), Json(16), Json(-1), Json("5"), Json(1.5)}) {
    const Json both = {{"prompt", kPrompt}, {"max_tokens", 5}, {"max_completion_tokens", value}};
    EXPECT_EQ(refusal(both, "/v1/completions"), Refusal(400, "max_completion_tokens")) << value;
  }
}

TEST_F(AGenerationServer, RefusesWhatOtherServersDoUnlessItChangesNothing) {
  start();
  const Json none = Json::array(), nothing = Json::object();
  struct Field {
    const char* name;
    std::vector<Json> harmless, wrong;
  };
  const Field fields[] = {
      {"repetition_penalty", {1, 1.0}, {1.3, 0, "1", true}},
      {"repeat_penalty", {1, 1.0}, {1.1, 0}},
      {"presence_penalty", {0, 0.0}, {0.5, "0", false}},
      {"frequency_penalty", {0, 0.0}, {-1, none}},
      {"min_p", {0, 0.0}, {0.05, "0"}},
      {"typical_p", {1, 1.0}, {0.9, 0}},
      {"stop_token_ids", {none}, {{2}, 2, nothing, ""}},
      {"max_new_tokens", {}, {0, 16}},
      {"n_predict", {}, {-1, 16}},
      {"min_tokens", {0}, {1, false}},
      {"truncate_prompt_tokens", {}, {-1, 100}},
      {"response_format", {{{"type", "text"}}}, {{{"type", "json_object"}}, "text", nothing}},
      {"guided_json", {}, {nothing, "{}"}},
      {"guided_regex", {}, {"a*", ""}},
      {"guided_choice", {}, {{"a", "b"}, none}},
      {"guided_grammar", {}, {"root ::= a"}},
      {"structured_outputs", {}, {{{"regex", "a*"}}}},
      {"grammar", {""}, {"root ::= a", none}},
      {"json_schema", {}, {nothing}},
      {"logit_bias", {nothing}, {{{"5", 1}}, "", none, 0, false}},
      {"bad_words", {none}, {{"wolf"}, ""}},
      {"allowed_token_ids", {none}, {{5}}},
      {"suffix", {""}, {"end", nothing, none, 0, false}},
      {"echo", {false}, {true, 0, "false"}},
      {"logprobs", {}, {0, 1, true}},
      {"tools", {none}, {{{{"type", "function"}}}}},
      {"tool_choice", {"none"}, {"auto", nothing}},
      {"use_beam_search", {false}, {true, 0}},
      {"num_beams", {1}, {4}},
      {"length_penalty", {1, 1.0}, {2}},
      {"include_stop_str_in_output", {false}, {true}},
      {"skip_special_tokens", {true}, {false}},
      {"messages", {}, {none}},
      {"do_sample", {true}, {false, 0, "false"}},
      {"min_new_tokens", {0}, {1}},
      {"stop_sequences", {none}, {{"wolf"}, ""}},
      {"stop_regex", {none}, {"a*", {"a*"}}},
      {"ebnf", {}, {"root ::= a", ""}},
      {"structural_tag", {}, {"{}", nothing}},
      {"guided_decoding", {}, {nothing}},
      {"ban_eos_token", {false}, {true, 0}},
      {"banned_strings", {none}, {{"wolf"}}},
      {"banned_tokens", {none}, {{5}}},
      {"top_n_sigma", {0, -1, -1.0}, {1, 0.5, "1"}},
      {"guidance_scale", {1, 1.0}, {1.5, 0}},
      {"num_return_sequences", {1}, {2, 0}},
      {"max_output_tokens", {}, {5}},
      {"encoder_repetition_penalty", {1, 1.0}, {1.2, 0}},
      {"penalty_alpha", {0, 0.0}, {0.6, "0"}},
      {"exponential_decay_length_penalty", {}, {{5, 1.2}}},
      {"custom_token_bans", {""}, {"5,6", none}},
      {"suppress_tokens", {none}, {{5}}},
      {"force_words_ids", {none}, {{{5}}}},
      {"forced_bos_token_id", {}, {5}},
      {"forced_eos_token_id", {}, {5}},
      {"eos_token_id", {}, {5, none}},
      {"allowed_tokens", {none}, {{5}}},
      {"top_logprobs", {0}, {1, false}},
      {"n_probs", {0}, {5}},
      {"user", {"me", ""}, {5, nothing, none, true}},
  };
  Json all_harmless = {{"prompt", kPrompt}, {"max_tokens", 1}};
  for (const auto& [name, harmless, wrong] : fields) {
    Json request = {{"prompt", kPrompt}, {"max_tokens", 1}, {name, nullptr}};
    EXPECT_EQ(post(request, "/v1/completions").status, 200) << name;
    for (const Json& value : harmless) {
      all_harmless[name] = request[name] = value;
      EXPECT_EQ(post(request, "/v1/completions").status, 200) << name << ": " << value;
    }
    for (const Json& value : wrong) {
      request[name] = value;
      EXPECT_EQ(refusal(request, "/v1/completions"), Refusal(400, name)) << value;
      EXPECT_EQ(refusal(request), Refusal(400, name)) << "the other form knows its own fields alone";
    }
  }
  EXPECT_EQ(post(all_harmless, "/v1/completions").status, 200);
  const Json words = {{"prompt", kPrompt}, {"top_n_sigma", "x"}};
  EXPECT_EQ(post(words, "/v1/completions").error()["message"], "top_n_sigma must be a number, not \"x\"");
}

TEST_F(AGenerationServer, TakesDoSampleWhereTheTemperatureAgrees) {
  start();
  Json request = {{"prompt", kPrompt}, {"max_tokens", 1}, {"do_sample", false}};
  EXPECT_EQ(refusal(request, "/v1/completions"), Refusal(400, "do_sample")) << "the temperature is 1";
  request["temperature"] = 0.5;
  EXPECT_EQ(refusal(request, "/v1/completions"), Refusal(400, "do_sample"));
  request["temperature"] = 0;
  EXPECT_EQ(post(request, "/v1/completions").status, 200);
}

TEST_F(AGenerationServer, RefusesWhatItDoesNotDoOfOpenAi) {
  start();
  const std::pair<const char*, Json> wrong[] = {{"presence_penalty", 0.5},
                                                {"frequency_penalty", -1},
                                                {"logit_bias", {{"5", 1}}},
                                                {"suffix", "end"},
                                                {"echo", true},
                                                {"logprobs", 1},
                                                {"best_of", 3},
                                                {"cache_salt", ""},
                                                {"salt", 5},
                                                {"best_of", 0},
                                                {"prompt", {"a", "b"}},
                                                {"prompt", 5},
                                                {"prompt", Json::array()},
                                                {"model", 5},
                                                {"stream_options", true},
                                                {"max_tokens", -1},
                                                {"prompt", {Json::array({})}}};
  for (const auto& [name, value] : wrong) {
    Json request = {{"prompt", kPrompt}};
    request[name] = value;
    EXPECT_EQ(refusal(request, "/v1/completions"), Refusal(400, name)) << value;
  }
  const Json harmless = {{"prompt", kPrompt},     {"presence_penalty", 0}, {"logit_bias", Json::object()},
                         {"suffix", nullptr},     {"echo", false},         {"logprobs", nullptr},
                         {"something new", true}, {"max_tokens", 1},       {"cache_salt", nullptr}};
  EXPECT_EQ(post(harmless, "/v1/completions").status, 200);
  EXPECT_EQ(refusal({{"prompt", kPrompt}, {"n", 2}, {"best_of", 1}}, "/v1/completions"),
            Refusal(400, "best_of"));
  EXPECT_EQ(refusal({{"prompt", kPrompt}, {"n", 2}, {"num_return_sequences", 1}}, "/v1/completions"),
            Refusal(400, "num_return_sequences"));
  const HttpResponse response = post({{"prompt", 5}}, "/v1/completions");
  EXPECT_EQ(response.error()["param"], "prompt");
  EXPECT_EQ(response.error()["type"], "invalid_request_error");
}

}  // namespace
}  // namespace kvcache
