/// @file
/// See thread_pool.h.
#include "common/base/thread_pool.h"

#include <system_error>

#include "common/base/error.h"
#include "fmt/format.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcache {
namespace {

/// How often an idle worker looks for work before it sleeps. It takes some tens of microseconds: longer than
/// the pauses within a pass, and short enough to leave the core to other programs.
constexpr int kSpins = 1000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// While an object lives, its thread takes subnormal numbers, those below 1.2e-38 in float32, for zero.
/// Weights that training has driven towards zero make millions of them, and many processors need a hundred
/// cycles for each. No sum changes that matters.
class NoSubnormals {
 public:
#if defined(__x86_64__)
  NoSubnormals() {
    _mm_setcsr(before_ | kFlushToZero | kSubnormalsAreZero);
  }
  ~NoSubnormals() {
    _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kSubnormalsAreZero = 0x0040;
  unsigned before_ = _mm_getcsr();
#elif defined(__aarch64__)
  NoSubnormals() {
    set(before_ | kFlushToZero);
  }
  ~NoSubnormals() {
    set(before_);
  }

 private:
  static constexpr std::uint64_t kFlushToZero = 1U << 24U;
  static std::uint64_t get() {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(std::uint64_t value) {
    asm volatile("msr fpcr, %0" : : "r"(value));
  }
  std::uint64_t before_ = get();
#else
  NoSubnormals() {}   // the processor stays as it is
  ~NoSubnormals() {}  // not trivial, so that a local is not called unused
#endif
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  try {
    for (int n = 1; n < threads; ++n) workers_.emplace_back([this] { worker_loop(); });
  } catch (const std::system_error& error) {
    const int started = this->threads();
    stop_workers();  // destroying a thread that is not joined would end the program
    // How many would do, only the caller knows: a server starts more of its own.
    throw RunError(fmt::format("the system gives {} of {} threads ({}); use a smaller --threads", started,
                               threads, error.code().message()));
  }
}

ThreadPool::~ThreadPool() {
  stop_workers();
}

void ThreadPool::stop_workers() {
  stop_ = true;
  ++runs_;
  runs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(std::int64_t count, const void* task, Call call) {
  const NoSubnormals here;
  if (workers_.empty() || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) call(task, index);
    return;
  }
  count_ = count;
  task_ = task;
  call_ = call;
  unfinished_.store(count);
  tasks_left_.store(count);
  ++runs_;
  if (sleeping_.load() > 0) runs_.notify_all();

  work();
  for (int spins = 0; unfinished_.load() > 0; ++spins) {
    // The last tasks run on other threads; on a crowded machine such a thread may need this core.
    spins < kSpins ? pause() : std::this_thread::yield();
  }
}

void ThreadPool::work() {
  std::int64_t done = 0;
  while (tasks_left_.load() > 0) {
    const std::int64_t left = tasks_left_.fetch_sub(1);
    if (left <= 0) break;
    call_(task_, count_ - left);
    ++done;
  }
  if (done > 0) unfinished_.fetch_sub(done);
}

void ThreadPool::worker_loop() {
  const NoSubnormals here;
  for (;;) {
    const std::uint32_t seen = runs_.load();
    if (stop_) return;
    work();
    for (int spins = 0; spins < kSpins && tasks_left_.load() <= 0; ++spins) pause();
    if (tasks_left_.load() > 0) continue;
    ++sleeping_;
    runs_.wait(seen);  // returns at once if there was a run meanwhile
    --sleeping_;
  }
}

}  // namespace kvcache
