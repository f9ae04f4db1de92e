// The memory that is reserved before any request has run.
#include <gtest/gtest.h>

#include "common/cli/machine.h"
#include "step2_flat_cache/make_cache.h"
#include "step3_paged/sizing.h"
#include "tests/support/files.h"
#include "tests/support/reference_model.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

class AServersMemory : public testing::Test {
 protected:
  /// A program that serves four sequences at a time, with `memory` bytes for K and V.
  static Program program_with(std::int64_t memory) {
    Program program{};
    program.options.serve = true;
    program.threads = std::make_unique<ThreadPool>(1);
    program.model = reference_model("fairytale", *program.threads);
    program.memory = 4 * memory;
    program.memory_to_serve = memory;
    Request whole_context;
    whole_context.prompt_ids = {0};
    whole_context.max_tokens = program.model->config().max_position_embeddings;
    program.requests.assign(4, whole_context);
    return program;
  }
};

TEST_F(AServersMemory, HoldsWholeContextsWhereThereIsRoom) {
  const Program program = program_with(1024 * kMiB);
  const std::int64_t blocks = paged_shape(program).blocks;
  EXPECT_EQ(blocks - blocks / 100, 4 * 1024 / 16) << "and the watermark";
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 1024);
}

TEST_F(AServersMemory, IsNoMoreThanThereIs) {
  const Program program = program_with(8 * kMiB);
  EXPECT_EQ(paged_shape(program).blocks, 8 * kMiB / (16 * 8192));
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 8 * kMiB / 8192 / 4);
}

TEST_F(AServersMemory, IsWhatTheCommandLineSays) {
  Program program = program_with(16 * kMiB);
  program.options.num_blocks = 100;
  program.options.max_seq_len = 300;
  EXPECT_EQ(paged_shape(program).blocks, 100);
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 300);
}

// The weights are loaded before the pool is made, so their memory is no longer free.
TEST_F(AServersMemory, IsHalfOfWhatTheMachineHasLeft) {
  Options options;
  options.serve = true;
  options.random_weights = "tiny";
  options.device = DeviceChoice::cpu;
  const std::int64_t before = machine_memory().total;
  const Program program = load_program(Step::paged, options);
  EXPECT_GT(program.memory_to_serve, 0);
  EXPECT_LT(program.memory_to_serve, before / 2);
}

// The default rows of a server's pass: what suits the CPU, and at least a row for each sequence.
TEST_F(AServersMemory, IsOfPassesWithARowForEachSequence) {
  Program program = program_with(8 * kMiB);
  EXPECT_EQ(rows_of_a_pass(program), 64);
  program.options.max_sequences = 300;
  EXPECT_EQ(rows_of_a_pass(program), 300);
  program.options.max_batch_tokens = 512;
  EXPECT_EQ(rows_of_a_pass(program), 512);
}

class AMachinesMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }
  void expect(std::int64_t total, std::int64_t available) const {
    const MachineMemory memory = machine_memory(root_.path());
    EXPECT_EQ(memory.total, total);
    EXPECT_EQ(memory.available, available);
  }
  TemporaryFolder root_;
};

TEST_F(AMachinesMemory, IsWhatTheSystemTells) {
  write("proc/meminfo", "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1500 kB\n");
  expect(2000 * 1024, 1500 * 1024);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  expect(2000 * 1024, 1500 * 1024);
}

TEST_F(AMachinesMemory, IsNoMoreThanAnyGroupOfTheProcessMayHave) {
  write("proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:   1500 kB\n");
  write("proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "900000\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "100000\n");
  expect(900000, 800000);
  write("sys/fs/cgroup/outer/memory.max", "850000\n");
  write("sys/fs/cgroup/outer/memory.current", "800000\n");
  expect(850000, 50000);
  write("sys/fs/cgroup/memory.max", "5000\n");  // as in a container, which sees its own group there
  write("sys/fs/cgroup/memory.current", "6000\n");
  expect(5000, 0);
}

// A sandbox without /proc. What a group may have is known even there.
TEST_F(AMachinesMemory, FitsEverySizeWhereTheSystemTellsNone) {
  expect(kUnknownMemory, kUnknownMemory);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "900000\n");
  write("sys/fs/cgroup/memory.current", "100000\n");
  expect(900000, 800000);
}

TEST_F(AServersMemory, HoldsWholeContextsWhereMemoryIsUnknown) {
  Program program = program_with(0);
  program.memory = kUnknownMemory;
  program.memory_to_serve = kUnknownMemory / 2;
  EXPECT_EQ(paged_shape(program).blocks, 4 * 1024 / 16 + 2);
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 1024);
}

TEST_F(AMachinesMemory, IsThere) {
  const MachineMemory memory = machine_memory();
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.total);
}

// 70,000 reservations of the context exceed 2^63 bytes.
TEST(ARunsMemory, IsWhatTheRequestsNeedWhereTheirContextsExceedAnyNumber) {
  ModelConfig config = named_config("tiny");
  config.vocab_size = config.hidden_size = config.intermediate_size = 8;
  config.layers = 2;
  config.heads = config.kv_heads = config.head_dim = 64;
  config.max_position_embeddings = 2'147'483'647;
  Program program{};
  program.dtype = DType::f32;
  program.threads = std::make_unique<ThreadPool>(1);
  program.model = std::make_unique<Transformer>(config, random_weights(config, DType::f32),
                                                std::make_unique<CpuBackend>(DType::f32, *program.threads));
  program.memory = kMiB * kMiB;
  Request request;
  request.prompt_ids = {1};
  request.max_tokens = 2;
  program.requests.assign(70'000, request);
  const Cache cache = make_flat_cache(program);
  EXPECT_EQ(cache.manager->capacity(), 3);
  EXPECT_EQ(cache.notes, std::vector<std::string>{
                             "70000 reservations of 2147483647 positions, 140737488289792 bytes each, are "
                             "more than this machine has; reserving the 3 needed"});
}

}  // namespace
}  // namespace kvcache
