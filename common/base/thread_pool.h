/// @file
/// The threads under the CPU arithmetic. A pass hands work over hundreds of times, for a few microseconds
/// each, so what matters is what happens when a thread is late.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/usable_processors.h"

namespace kvcache {

/// A fixed set of threads that share the tasks of one `run` at a time. Whoever is free takes the next task,
/// the caller too, and `run` waits for tasks, never for threads: on a busy machine a worker that the system
/// has not scheduled is simply not there. (OpenMP's loops end in a barrier that waits for every thread; on
/// two cores shared with other programs a pass of the tiny test models took 93 ms with it, and 0.4 ms on one
/// thread.)
class ThreadPool {
 public:
  /// @param threads  at least 1; the thread that calls `run` is one of them
  /// @throws RunError if the system does not give as many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// As many threads as this process can run at once.
  static int all_threads() { return usable_processors(); }
  /// Threads that work, the calling one among them.
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls `task(begin, end)` for pieces of [0, count) of at most `piece` each; otherwise as below.
  template <typename Task>
  void run_pieces(std::int64_t count, std::int64_t piece, const Task& task) {
    run((count + piece - 1) / piece,
        [&](std::int64_t n) { task(n * piece, std::min(count, (n + 1) * piece)); });
  }

  /// Calls `task(index)` once for each index in [0, count), in any order, on any threads; returns when all
  /// have returned. Tasks must not throw and must not call `run`. Only one thread may call `run` at a time.
  /// In a task, numbers too small for float32's normal form count as zero, on every thread alike.
  template <typename Task>
  void run(std::int64_t count, const Task& task) {
    run_erased(count, &task,
               [](const void* erased, std::int64_t index) { (*static_cast<const Task*>(erased))(index); });
  }

 private:
  void stop_workers();

  using Call = void (*)(const void* task, std::int64_t index);

  void run_erased(std::int64_t count, const void* task, Call call);
  /// Takes and runs tasks of the current run until none is left.
  void work();
  void worker_loop();

  // The current run. `ticket_` holds its number in the upper half and how many tasks are not yet taken in the
  // lower one, so that taking a task and knowing which run it belongs to are one atomic step. The other
  // fields are read only by those who hold a task of the run, and it does not end before their task does.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::int64_t> unfinished_{0};
  std::int64_t count_ = 0;
  const void* task_ = nullptr;
  Call call_ = nullptr;

  std::atomic<std::uint32_t> runs_{0};  // what sleeping workers wait on
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvcache
