/// @file
/// The threads under the CPU arithmetic. A pass hands work over hundreds of times, for a few microseconds
/// each, so the pool must not wait for a late thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/base/usable_processors.h"

namespace kvcache {

/// A fixed set of threads that share the tasks of one `run` at a time. A free thread takes the next task, and
/// so does the caller. `run` waits for tasks, never for threads: on a busy machine, the tasks of a worker
/// that the system has not scheduled are done by the others. (OpenMP's loops end in a barrier that waits for
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
  /// Takes and runs tasks of the current run until none is left.
  void work();
  void worker_loop();

  // The current run. Only a thread that has taken a task, and not yet reported it, reads the fields below
  // `tasks_left_`; the run does not end before. What all threads write lies on cache lines of its own.
  /// Not yet taken; below zero when threads asked for more.
  alignas(64) std::atomic<std::int64_t> tasks_left_{0};
  /// Not yet reported.
  alignas(64) std::atomic<std::int64_t> unfinished_{0};
  alignas(64) std::int64_t count_ = 0;
  const void* task_ = nullptr;
  Call call_ = nullptr;

  std::atomic<std::uint32_t> runs_{0};  // what sleeping workers wait on
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kvcache
