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
/// An idle thread asks for so many lines of a cache, then looks for work again.
constexpr int kLinesAtATime = 16;
constexpr std::int64_t kLineBytes = 64;

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

ThreadPool::ThreadPool(int threads) : shares_(static_cast<std::size_t>(std::max(1, threads))) {
  workers_.reserve(shares_.size());
  try {
    for (std::size_t n = 1; n < shares_.size(); ++n) workers_.emplace_back([this, n] { worker_loop(n); });
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
  task_ = task;
  call_ = call;
  handed_out_ += count;
  for (int thread = 0; thread < threads(); ++thread) {
    Share& share = shares_[static_cast<std::size_t>(thread)];
    share.end = first_of(thread + 1, count);
    share.left.store(share.end - first_of(thread, count), std::memory_order_release);
  }
  ++runs_;
  if (sleeping_.load() > 0) runs_.notify_all();

  work(0);
  while (!all_done() && ask_ahead(shares_[0])) {
  }
  for (int spins = 0; !all_done(); ++spins) {
    // The last tasks run on other threads; on a crowded machine such a thread may need this core.
    spins < kSpins ? pause() : std::this_thread::yield();
  }
}

void ThreadPool::work(std::size_t thread) {
  for (std::size_t n = 0; n < shares_.size(); ++n) {
    Share& share = shares_[(thread + n) % shares_.size()];
    std::int64_t ran = 0;
    while (share.left.load() > 0) {
      const std::int64_t left = share.left.fetch_sub(1);
      if (left <= 0) break;
      call_(task_, share.end - left);
      ++ran;
    }
    std::atomic<std::int64_t>& done = shares_[thread].done;
    if (ran > 0) done.store(done.load(std::memory_order_relaxed) + ran, std::memory_order_release);
  }
}

bool ThreadPool::all_done() const {
  std::int64_t done = 0;
  for (const Share& share : shares_) done += share.done.load(std::memory_order_acquire);
  return done == handed_out_;
}

void ThreadPool::read_ahead(int thread, std::span<const std::byte> bytes) {
  Share& share = shares_[static_cast<std::size_t>(thread)];
  share.ahead.store(bytes.data(), std::memory_order_relaxed);
  share.ahead_bytes.store(std::ssize(bytes), std::memory_order_relaxed);
}

bool ThreadPool::ask_ahead(Share& share) {
  // The two may be of different calls; asking for the wrong lines costs some time and nothing else.
  const std::byte* const ahead = share.ahead.load(std::memory_order_relaxed);
  const std::int64_t bytes = share.ahead_bytes.load(std::memory_order_relaxed);
  if (share.asked != ahead) share.asked = ahead, share.asked_bytes = 0;
  for (int n = 0; n < kLinesAtATime && share.asked_bytes < bytes; ++n, share.asked_bytes += kLineBytes)
    __builtin_prefetch(ahead + share.asked_bytes, /*write=*/0, /*second-level cache*/ 2);
  return share.asked_bytes < bytes;
}

void ThreadPool::worker_loop(std::size_t thread) {
  const NoSubnormals here;
  for (;;) {
    const std::uint32_t seen = runs_.load();
    if (stop_) return;
    work(thread);
    while (runs_.load() == seen && ask_ahead(shares_[thread])) {
    }
    for (int spins = 0; spins < kSpins && runs_.load() == seen; ++spins) pause();
    if (runs_.load() != seen) continue;
    ++sleeping_;
    runs_.wait(seen);  // returns at once if there was a run meanwhile
    --sleeping_;
  }
}

}  // namespace kvcache
