/// @file
/// The threads under the CPU arithmetic. A pass hands work over hundreds of times, for a few microseconds
/// each, so the pool must not wait for a late thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "common/base/usable_processors.h"

namespace kvcache {

/// A fixed set of threads that share the tasks of one `run` at a time; the caller is one of them. Each thread
/// has a share of the tasks, the same in every run of as many, and then takes tasks that others have not
/// begun. `run` waits for tasks, never for threads: on a busy machine, the tasks of a worker that the system
/// has not scheduled are done by the others. (OpenMP's loops end in a barrier that waits for
/// every thread. On two cores shared with other programs, a pass of the tiny test models took 93 ms with
/// OpenMP, and 0.4 ms on one thread.)
class ThreadPool {
 public:
  /// @param threads  at least 1; the thread that calls `run` is one of them
  /// @throws RunError if the system does not give that many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// As many threads as this process can run at once.
  static int all_threads() { return usable_processors(); }
  /// Threads that work, including the calling one.
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// The first task of `thread`'s share in a run of `count` tasks, which ends where the next thread's begins.
  /// Thread 0 is the one that calls `run`.
  std::int64_t first_of(int thread, std::int64_t count) const { return count * thread / threads(); }
  /// From now on `thread` asks memory for `bytes` while it has nothing else to do, from the first line on.
  void read_ahead(int thread, std::span<const std::byte> bytes);

  /// Calls `task(begin, end)` for pieces of [0, count) of at most `piece` each; otherwise as `run`.
  template <typename Task>
  void run_pieces(std::int64_t count, std::int64_t piece, const Task& task) {
    run((count + piece - 1) / piece,
        [&](std::int64_t n) { task(n * piece, std::min(count, (n + 1) * piece)); });
  }

  /// Calls `task(index)` once for each index in [0, count), in any order, on any threads; returns when all
  /// calls have returned. Tasks must not throw and must not call `run`. Only one thread may call `run` at a
  /// time. In a task, subnormal float32 numbers count as zero, on every thread.
  template <typename Task>
  void run(std::int64_t count, const Task& task) {
    run_erased(count, &task,
               [](const void* erased, std::int64_t index) { (*static_cast<const Task*>(erased))(index); });
  }

 private:
  void stop_workers();

  using Call = void (*)(const void* task, std::int64_t index);

  void run_erased(std::int64_t count, const void* task, Call call);
  /// What one thread has to itself. What different threads write lies on different cache lines.
  struct Share {
    // Written by the thread that calls `run`. Only a thread that has taken a task, and not yet reported it,
    // reads `end` and the pool's `task_` and `call_`; the run does not end before.
    alignas(64) std::atomic<std::int64_t> left{0};  ///< not yet taken; below zero when threads asked for more
    std::int64_t end = 0;                           ///< one past the last task
    std::atomic<const std::byte*> ahead{nullptr};   ///< what `read_ahead` was given last
    std::atomic<std::int64_t> ahead_bytes{0};
    // Written by the share's own thread.
    alignas(64) std::atomic<std::int64_t> done{0};  ///< tasks of all runs so far
    const std::byte* asked = nullptr;               ///< the last `ahead` that it has begun,
    std::int64_t asked_bytes = 0;                   ///< and so much of it was asked for
  };

  /// Runs the tasks of a thread's share, then those that the others have not yet taken.
  void work(std::size_t thread);
  /// Whether all tasks of all runs are done.
  bool all_done() const;
  /// Asks memory for the next lines of what the thread reads ahead. @return false if there are none
  static bool ask_ahead(Share& share);
  void worker_loop(std::size_t thread);

  std::vector<Share> shares_;    // by thread
  std::int64_t handed_out_ = 0;  // tasks of all runs
  const void* task_ = nullptr;
  Call call_ = nullptr;

  alignas(64) std::atomic<std::uint32_t> runs_{0};  // what idle workers wait on
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvcache
