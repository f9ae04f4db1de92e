// --serve as a user runs it: over HTTP, the programs of steps 2 to 4 give the answers that they print without
// it. They say where they listen, and end at a signal.
#include "tests/support/server_program.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "common/server/serve.h"
#include "tests/support/files.h"
#include "tests/support/reference_model.h"
#include "tests/support/report_of.h"
#include "tests/support/run_program.h"
#include "tests/support/sanitized.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

const char* const kSteps[] = {"step2_flat_cache", "step3_paged", "step4_prefix_cache"};

TEST(ServerProgram, AnswersWhatTheProgramPrints) {
  const Arguments input{"--prompt", "Once upon a time", "--tokens", "20"};
  for (const std::string step : kSteps) {
    const Json expected = report_of(step, input)["sequences"][0];
    ServerProgram server(step);
    const std::string line = server.read_line();
    ASSERT_TRUE(line.starts_with("listening on http://127.0.0.1:")) << line;
    const Json answer = HttpClient(port_of(line))
                            .post("/generate", {{"prompt", "Once upon a time"}, {"max_tokens", 20}})
                            .json();
    EXPECT_EQ(answer["ids"], expected["output_ids"]) << step;
    EXPECT_EQ(answer["text"], expected["text"]) << step;
    EXPECT_EQ(answer["finish_reason"], expected["finish_reason"]) << step;
    server.send(SIGTERM);
    EXPECT_EQ(server.wait_for_end(), 0) << "exit code 0";
    EXPECT_EQ(server.read_line(), "") << "nothing else on stdout";
  }
}

TEST(ServerProgram, SamplesWhatTheProgramSamples) {
  const Json expected =
      report_of("step4_prefix_cache", {"--prompt", "The wolf", "--tokens", "12", "--samples", "3",
                                       "--temperature", "0.9", "--top-k", "40", "--seed", "11"});
  ServerProgram server("step4_prefix_cache");
  const Json answer = HttpClient(server.wait_for_port())
                          .post("/generate", {{"prompt", "The wolf"},
                                              {"max_tokens", 12},
                                              {"n", 3},
                                              {"temperature", 0.9},
                                              {"top_k", 40},
                                              {"seed", 11}})
                          .json();
  for (std::size_t sample = 0; sample < 3; ++sample)
    EXPECT_EQ(answer["samples"][sample]["ids"], expected["sequences"][sample]["output_ids"]);
}

// The size of a thread's stack is that of `ulimit -s`, for which no address space is left.
TEST(ServerProgram, EndsWithARemedyWhereTheSystemGivesNoThread) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const std::string program = std::string(BINARY_DIR) + "/step3_paged";
  const ProgramResult result = run_program(
      "/bin/sh",
      {"-c", "ulimit -s 4000000; ulimit -v 3000000; exec \"$0\" --serve --port 0 --device cpu", program});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("no more threads (Resource temporarily unavailable); a server needs five"),
            std::string::npos)
      << result.err;
}

TEST(ServedName, IsTheFolderOrTheNameUnderWhichASnapshotWasDownloaded) {
  const TemporaryFolder folder;
  const std::filesystem::path hub = folder / "hub";
  const auto make = [&](const char* path) {
    std::filesystem::create_directories(hub / path);
    return hub / path;
  };
  const std::filesystem::path snapshot = make("models--Qwen--Qwen3-0.6B/snapshots/c1899de2");
  EXPECT_EQ(served_name(snapshot), "Qwen/Qwen3-0.6B");
  EXPECT_EQ(served_name(snapshot / ""), "Qwen/Qwen3-0.6B") << "with a slash at its end";
  EXPECT_EQ(served_name(snapshot / "../c1899de2/."), "Qwen/Qwen3-0.6B");
  std::filesystem::create_directory_symlink(snapshot, hub / "linked");
  EXPECT_EQ(served_name(hub / "linked"), "Qwen/Qwen3-0.6B");
  EXPECT_EQ(served_name(std::filesystem::relative(snapshot)), "Qwen/Qwen3-0.6B");
  EXPECT_EQ(served_name(make("models--gpt2/snapshots/11c5a3d5")), "gpt2");
  EXPECT_EQ(served_name(make("models--a--b--c/snapshots/0")), "a/b--c");
  // Folders that only look like a snapshot of the hub.
  EXPECT_EQ(served_name(make("models--Qwen--Qwen3-0.6B")), "models--Qwen--Qwen3-0.6B");
  EXPECT_EQ(served_name(make("models--a--b/snapshots")), "snapshots");
  EXPECT_EQ(served_name(make("models--a--b/blobs/x")), "x");
  EXPECT_EQ(served_name(make("models--/snapshots/x")), "x");
  EXPECT_EQ(served_name(make("fairytale/snapshots/x")), "x");
  EXPECT_EQ(served_name(make("plain") / ""), "plain");
  EXPECT_EQ(served_name(hub / "absent/"), "absent");
}

TEST(ServerProgram, RefusesAModelThatCannotBeLookedAtAsItDoesWithoutServing) {
  const TemporaryFolder folder;
  const std::filesystem::path ring = folder / "ring";
  std::filesystem::create_symlink(ring, ring);
  for (const std::string& model : {ring.string(), "/tmp/" + std::string(300, 'x')}) {
    const ProgramResult without = run_step("step3_paged", {"--model", model});
    EXPECT_EQ(without.exit_code, 2);
    for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"})
      expect_refusal(step, {"--model", model, "--serve", "--port", "0"}, 2, {without.err});
  }
}

TEST(ServerProgram, IsAskedForASnapshotByTheNameUnderWhichItWasDownloaded) {
  const TemporaryFolder folder;
  const std::filesystem::path snapshot = folder / "models--org--fairytale/snapshots/0123abcd";
  std::filesystem::create_directories(snapshot.parent_path());
  std::filesystem::copy(checkpoint_folder("fairytale"), snapshot, std::filesystem::copy_options::recursive);
  ServerProgram server("step3_paged", {"--model", snapshot.string()});
  HttpClient client(server.wait_for_port());
  EXPECT_EQ(client.get("/v1/models").json()["data"][0]["id"], "org/fairytale");
  EXPECT_EQ(client.get("/v1/models/org/fairytale").json()["id"], "org/fairytale");
  EXPECT_EQ(client.get("/v1/models/org%2Ffairytale").json()["id"], "org/fairytale");
  const Json answer = client.post("/v1/completions", {{"prompt", "The"}, {"max_tokens", 1}}).json();
  EXPECT_EQ(answer["model"], "org/fairytale");
}

TEST(ServerProgram, TakesTheOptionsOfItsCache) {
  ServerProgram server("step4_prefix_cache", {"--num-blocks", "20", "--block-size", "8", "--system-prompt",
                                              "Once upon a time there was"});
  HttpClient client(server.wait_for_port());
  const Json blocks = client.get("/health").json()["blocks"];
  EXPECT_EQ(blocks["total"], 20);
  EXPECT_EQ(blocks["block_size"], 8);
  EXPECT_EQ(blocks["in_use"], 1) << "the system prompt's";
  EXPECT_EQ(client.post("/generate", {{"prompt_ids", std::vector<int>(161, 5)}}).status, 422);

  ServerProgram reservations("step2_flat_cache", {"--max-seq-len", "50", "--max-sequences", "3"});
  HttpClient other(reservations.wait_for_port());
  EXPECT_EQ(other.post("/generate", {{"prompt_ids", std::vector<int>(51, 5)}}).status, 422);
  EXPECT_EQ(other.post("/generate", {{"prompt", "x"}, {"n", 4}}).status, 400);
  EXPECT_EQ(other.get("/state").json()["cells"], "...");

  ServerProgram no_tokenizer("step3_paged", {"--random-weights", "fairytale", "--kv-memory", "8MiB"});
  HttpClient ids_alone(no_tokenizer.wait_for_port());
  EXPECT_EQ(ids_alone.post("/generate", {{"prompt_ids", {1, 2}}, {"max_tokens", 3}}).json()["ids"].size(),
            3U);
  EXPECT_EQ(ids_alone.get("/v1/models").json()["data"][0]["id"], "random:fairytale");
}

TEST(ServerProgram, GivesItsSaltToRequestsWithoutOne) {
  ServerProgram server("step4_prefix_cache",
                       {"--num-blocks", "40", "--salt", "house", "--debug-hash-bits", "1"});
  HttpClient client(server.wait_for_port());
  const auto cached = [&](const Json& salt) {
    const Json request = {{"prompt_ids", std::vector<int>(33, 5)}, {"max_tokens", 1}, {"cache_salt", salt}};
    return client.post("/generate", request).json()["usage"]["cached_tokens"];
  };
  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached("alice"), 0);
  EXPECT_EQ(cached("mallory"), 0);
  EXPECT_EQ(cached(nullptr), 32);
  EXPECT_EQ(cached("house"), 32) << "it is a salt as any other: keep it to yourself";
  EXPECT_EQ(cached("alice"), 32);
}

TEST(ServerProgram, TakesABurstOfAllThatMayRunAndMore) {
  constexpr int kBurst = 300;  // 256 run, the others wait
  ServerProgram server("step3_paged", {"--max-sequences", "256", "--num-blocks", "600"});
  const int port = server.wait_for_port();
  std::vector<HttpClient> clients;
  for (int n = 0; n < kBurst; ++n) clients.emplace_back(port);
  for (HttpClient& client : clients)
    client.send_request("POST", "/generate", R"({"prompt": "The wolf", "max_tokens": 3})");
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
}

TEST(ServerProgram, RefusesWhoComesAfterAllThatMayWait) {
  ServerProgram server("step2_flat_cache", {"--random-weights", "fairytale", "--max-seq-len", "32768",
                                            "--max-sequences", "2", "--max-waiting", "3"});
  const int port = server.wait_for_port();
  const std::string request = R"({"prompt_ids": [1], "max_tokens": 32000, "ignore_eos": true})";
  std::vector<HttpClient> clients;
  for (int n = 0; n < 2 + 3; ++n) {
    clients.emplace_back(port);
    clients.back().send_request("POST", "/generate", request);
  }
  Json health;
  do {
    health = HttpClient(port).get("/health").json();
  } while (health["running"] != 2 || health["waiting"] != 3);
  const HttpResponse refused = HttpClient(port).post("/generate", Json::parse(request));
  EXPECT_EQ(refused.status, 429);
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
}

TEST(ServerProgram, FinishesWhatRunsWhenItIsToldToEnd) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServerProgram server("step4_prefix_cache");
    HttpClient client(server.wait_for_port());
    client.send_request("POST", "/generate",
                        R"({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "stream": true})");
    EXPECT_EQ(client.read_head().status, 200);
    server.send(signal);
    int parts = 0;
    while (client.read_chunk()) ++parts;
    EXPECT_EQ(parts, 200 + 1) << "all of the stream";
    EXPECT_EQ(server.wait_for_end(), 0);
  }
}

TEST(ServerProgram, EndsAtOnceAtTheSecondSignal) {
  ServerProgram server("step2_flat_cache", {"--random-weights", "fairytale", "--max-seq-len", "32768"});
  const int port = server.wait_for_port();
  HttpClient client(port);
  client.send_request("POST", "/generate", R"({"prompt_ids": [1], "max_tokens": 32000, "stream": true})");
  EXPECT_EQ(client.read_head().status, 200);
  server.send(SIGTERM);
  while (HttpClient(port).get("/health").json()["status"] != "stopping") {
  }
  server.send(SIGTERM);
  const int status = server.wait_for_end();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

// The system gives the first process of a container no signal by its default effect.
TEST(ServerProgram, EndsAtOnceAtTheSecondSignalInAContainerToo) {
  const int outside = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  if (outside < 0 || unshare(CLONE_NEWPID) != 0) GTEST_SKIP() << "no namespace of processes may be made here";
  ServerProgram server("step2_flat_cache", {"--random-weights", "fairytale", "--max-seq-len", "32768"});
  ASSERT_EQ(setns(outside, CLONE_NEWPID), 0);
  close(outside);
  HttpClient client(server.wait_for_port());
  client.send_request("POST", "/generate", R"({"prompt_ids": [1], "max_tokens": 32000, "stream": true})");
  EXPECT_EQ(client.read_head().status, 200);
  server.send(SIGTERM);
  server.send(SIGINT);
  const int status = server.wait_for_end();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) > 128) << status;
}

// The second signal comes before the first is handled. The system then takes two equal signals for one.
TEST(ServerProgram, LosesNoSecondSignalThatComesWithTheFirst) {
  for (int round = 0; round < 10; ++round) {
    ServerProgram server("step2_flat_cache", {"--random-weights", "fairytale", "--max-seq-len", "32768"});
    HttpClient client(server.wait_for_port());
    client.send_request("POST", "/generate", R"({"prompt_ids": [1], "max_tokens": 32000, "stream": true})");
    EXPECT_EQ(client.read_head().status, 200);
    server.send(SIGTERM);
    server.send(SIGINT);
    const int status = server.wait_for_end();
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
  }
}

TEST(ServerProgram, SaysElsewhereWhereItListensIfStdoutCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const TemporaryFolder folder;
  const std::string step = std::string(BINARY_DIR) + "/step3_paged", notes = folder / "notes";
  const ProgramResult result =
      run_program("/bin/sh", {"-c",
                              "\"$0\" --serve --port 0 --device cpu >/dev/full 2>\"$1\" & "
                              "until grep -q 'listening on' \"$1\"; do kill -0 $! || exit 9; done; "
                              "kill $!; wait $!",
                              step, notes});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(
      read_file(notes).starts_with("note: stdout cannot be written (No space left on device); listening on "
                                   "http://127.0.0.1:"))
      << read_file(notes);
}

TEST(ServerProgram, LogsATraceOfItsRequests) {
  for (const char* step : kSteps) {
    const TemporaryFolder folder;
    const std::string file = folder / "traffic.jsonl";
    write_file(file, "of an earlier run\n");
    ServerProgram server(step, {"--log-trace", file});
    HttpClient client(server.wait_for_port());
    client.post("/generate", {{"prompt_ids", std::vector<int>(33, 5)}, {"max_tokens", 2}});
    client.post("/v1/completions", {{"prompt", "The wolf"}, {"max_tokens", 3}, {"ignore_eos", true}});
    std::istringstream lines(read_file(file));
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << step;
    EXPECT_EQ(Json::parse(line)["hash_ids"].size(), 3U) << step << ", blocks of 16";
    ASSERT_TRUE(std::getline(lines, line)) << step;
    EXPECT_EQ(Json::parse(line)["output_length"], 3) << step;
    EXPECT_FALSE(std::getline(lines, line)) << step << ": " << line;
  }
}

TEST(ServerProgram, LogsBlocksOfTheCacheAndItsSalt) {
  const TemporaryFolder folder;
  const std::string file = folder / "traffic.jsonl";
  ServerProgram server("step4_prefix_cache", {"--log-trace", file, "--block-size", "8", "--salt", "house"});
  HttpClient client(server.wait_for_port());
  for (const Json& salt : {Json(nullptr), Json("house"), Json("alice")}) {
    client.post("/generate",
                {{"prompt_ids", std::vector<int>(33, 5)}, {"max_tokens", 1}, {"cache_salt", salt}});
  }
  std::istringstream text(read_file(file));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line)["hash_ids"]);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].size(), 5U);
  EXPECT_EQ(lines[0], lines[1]);
  for (std::size_t block = 0; block < 5; ++block) EXPECT_NE(lines[0][block], lines[2][block]);
}

/// What a server with `arguments` prints on stderr until it listens; it then gets a request and ends.
std::string notes_of(const std::string& step, const std::string& arguments) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      "/bin/sh", {"-c",
                  "cd \"$1\"; \"$0\" --serve --port 0 --device cpu " + arguments +
                      " >address 2>notes & until grep -q 'listening on' address; do kill -0 $! || exit 9; "
                      "done; kill $!; wait $!",
                  std::string(BINARY_DIR) + "/" + step, folder.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return read_file(folder / "notes");
}

TEST(ServerProgram, SaysHowToReplayItsLog) {
  EXPECT_EQ(notes_of("step2_flat_cache", "--log-trace a.jsonl"),
            "note: logging a trace of blocks of 16 tokens to a.jsonl; replay it with ./steps replay a.jsonl "
            "--trace-block 16 --max-sequences 16 --max-batch-tokens 64\n");
  EXPECT_EQ(
      notes_of("step3_paged", "--log-trace a.jsonl --block-size 32 --max-sequences 5 --max-batch-tokens 70"),
      "note: logging a trace of blocks of 32 tokens to a.jsonl; replay it with ./steps replay a.jsonl "
      "--trace-block 32 --max-sequences 5 --max-batch-tokens 70\n");
  EXPECT_EQ(notes_of("step3_paged", ""), "");
}

TEST(ServerProgram, GoesOnWhereItsLogCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  ServerProgram server("step3_paged", {"--log-trace", "/dev/full"});
  HttpClient client(server.wait_for_port());
  for (int times = 0; times < 2; ++times)
    EXPECT_EQ(client.post("/generate", {{"prompt", "The wolf"}, {"max_tokens", 2}}).status, 200);
  server.send(SIGTERM);
  EXPECT_EQ(server.wait_for_end(), 0);
}

TEST(ServerProgram, LogsToNoFileThatItReadsOrCannotWrite) {
  const TemporaryFolder folder;
  const CheckpointCopy model;
  const auto refused = [&](const std::string& step, const std::string& file,
                           const std::vector<std::string>& parts) {
    expect_refusal(step, {"--serve", "--port", "0", "--model", model.path(), "--log-trace", file}, 2, parts);
  };
  for (const char* step : kSteps) {
    refused(step, "/no/such/folder/log",
            {"--log-trace cannot write \"/no/such/folder/log\": No such file or directory; give a file"});
    const std::string weights = model / "model.safetensors", before = read_file(weights);
    refused(step, weights, {"--log-trace would replace \"" + weights + "\"", "a file of the model in"});
    EXPECT_TRUE(read_file(weights) == before);
  }
  std::filesystem::remove(model / "generation_config.json");
  const std::string absent = model / "generation_config.json";
  refused("step3_paged", absent, {"--log-trace would write \"" + absent + "\", which runs read"});
  EXPECT_FALSE(std::filesystem::exists(absent));

  // The file that gets stdout.
  const std::string both = folder / "both";
  const ProgramResult result =
      run_program("/bin/sh", {"-c", "\"$0\" --serve --port 0 --log-trace \"$1\" >>\"$1\"",
                              std::string(BINARY_DIR) + "/step3_paged", both});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "error: --log-trace would replace \"" + both + "\", which is stdout; give another file\n");
}

TEST(ServerProgram, KeepsTheLogOfAnEarlierRunWhereItRefusesToStart) {
  const TemporaryFolder folder;
  const std::string file = folder / "traffic.jsonl";
  write_file(file, "of an earlier run\n");
  expect_refusal("step3_paged", {"--serve", "--port", "0", "--model", "/nowhere", "--log-trace", file}, 2,
                 {"/nowhere"});
  expect_refusal("step2_flat_cache",
                 {"--serve", "--port", "0", "--max-seq-len", "1000000000000", "--log-trace", file}, 2,
                 {"--max-seq-len"});
  expect_refusal("step4_prefix_cache",
                 {"--serve", "--port", "0", "--num-blocks", "1", "--system-prompt", std::string(300, 'x'),
                  "--log-trace", file},
                 2, {"the system prompt"});
  EXPECT_EQ(read_file(file), "of an earlier run\n");
}

TEST(ServerProgram, NeedsAPortAndAnAddress) {
  ServerProgram server("step3_paged");
  const std::string port = std::to_string(server.wait_for_port());
  expect_refusal("step3_paged", {"--serve", "--port", port}, 1,
                 {"--port " + port + " is taken", "give another"});
  expect_refusal("step3_paged", {"--serve", "--host", "192.0.2.1"}, 2, {"--host \"192.0.2.1\""});
  expect_refusal("step3_paged", {"--serve", "--port", "0", "--model", "/nowhere"}, 2, {"/nowhere"});
}

TEST(ServerProgram, TakesTheAddressThatItPrints) {
  if (read_file("/proc/net/if_inet6").find("00000000000000000000000000000001") == std::string::npos)
    GTEST_SKIP() << "this machine has no IPv6";
  for (const char* step : kSteps) {
    ServerProgram server(step, {"--host", "[::1]"});
    const std::string line = server.read_line();
    EXPECT_TRUE(line.starts_with("listening on http://[::1]:")) << step << ": " << line;
  }
}

TEST(ServerProgram, TakesNoOtherHostInBrackets) {
  for (const std::string host : {"[::1", "::1]", "[127.0.0.1]", "[localhost]", "[]", "[[::1]]"})
    expect_refusal("step3_paged", {"--serve", "--port", "0", "--host", host}, 2, {"--host \"" + host + "\""});
}

}  // namespace
}  // namespace kvcache
