/// @file
/// An engine at work on a thread of its own. Other threads leave orders: take this request, cancel that one.
/// The engine's thread carries the orders out between two passes, and sleeps when there is nothing to do. It
/// calls each request's listener.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/engine/engine.h"
#include "common/kv/cache_state.h"
#include "common/kv/report.h"

namespace kvcache {

/// What an engine looks like between two passes. The next pass may be planned already: then its blocks are in
/// use, and the sequences that it admits run with no token stored. During a long pass only running_count and
/// waiting are new.
struct EngineStatus {
  /// A sequence that holds memory.
  struct Running {
    std::int32_t sequence = 0;              ///< the manager's name for it
    std::int64_t tokens = 0;                ///< stored
    std::vector<std::int32_t> block_table;  ///< empty without blocks
  };
  /// A sequence that waits to be admitted, or admitted again.
  struct Waiting {
    std::int32_t sequence = 0;     ///< the manager's name for it
    std::int64_t tokens = 0;       ///< prompt, and output so far
    std::int64_t samples = 1;      ///< itself, and the samples that will fork from it
    std::int64_t preemptions = 0;  ///< how often it was preempted
  };
  std::int64_t running_count = 0;   ///< sequences
  std::vector<Running> running;     ///< oldest first
  std::vector<Waiting> queue;       ///< the next to be admitted first
  std::int64_t waiting = 0;         ///< sequences in the queue, and requests that have just come
  BlocksReport blocks;              ///< of the pool
  KvMemoryReport memory;            ///< reserved and used
  CountersReport counters;          ///< the manager's, and the scheduler's preemptions
  EngineTotals totals;              ///< since the start
  std::optional<CacheState> cache;  ///< only on request, and while the engine works
  std::string failure;              ///< why the engine has failed; empty: it works
};

/// An engine's own thread, and what other threads may ask of it.
class EngineThread {
 public:
  /// Why a request was not taken. Neither is the client's fault.
  enum class Refusal : std::uint8_t {
    queue_full,  ///< try again later: each request that ends makes room
    closed,      ///< the engine is being shut down, or has failed
  };

  /// Starts the thread. From now on other threads may call only `check` of `engine`.
  /// @param max_requests  running and waiting at a time, at most
  EngineThread(Engine& engine, std::int64_t max_requests);
  /// Cancels all requests and joins the thread.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Takes a request. Any thread may call it.
  /// @param arrived  since when it waits
  /// @return its id; or why it is not taken, and then the listener is never called
  /// @throws InputError as Engine::check
  [[nodiscard]] std::variant<GenerationId, Refusal> submit(
      GenerationRequest request, OnGenerationEvent on_event,
      Engine::Clock::time_point arrived = Engine::Clock::now());
  /// The most requests at a time, running and waiting.
  std::int64_t max_requests() const { return max_requests_; }
  /// Requests that were submitted and have not ended.
  std::int64_t requests() const;
  /// Cancels a request before the next pass. Its listener is told, unless the request has ended already.
  void cancel(GenerationId id);

  /// Takes no more requests; those already taken go on.
  void close();
  /// Waits until no request is left.
  /// @return false if some are left after `at_most`
  [[nodiscard]] bool wait_until_idle(std::chrono::milliseconds at_most);
  /// Cancels all requests.
  void cancel_all();

  /// The status after the current pass; the status before it if the pass takes longer than `at_most`.
  /// @param with_cache  with `cache`, which takes time in proportion to the pool and is left out if the pass
  /// takes longer than `at_most`
  EngineStatus status(std::chrono::milliseconds at_most, bool with_cache = false);

 private:
  struct Submission {
    GenerationId id;
    GenerationRequest request;
    OnGenerationEvent on_event;
    Engine::Clock::time_point at;
  };
  struct Cancellation {
    std::optional<GenerationId> id;  // none: all requests
  };
  using Order = std::variant<Submission, Cancellation>;

  void work();
  void serve();
  void carry_out_orders(std::unique_lock<std::mutex>& lock);
  void carry_out(Order order);
  void count_sequences();
  void update_status();
  void enqueue(Order order);

  Engine& engine_;
  const std::int64_t max_requests_;

  mutable std::mutex mutex_;  // guards all members below, except thread_
  std::condition_variable ordered_, looked_;
  std::deque<Order> orders_;
  std::int64_t requests_ = 0;          // submitted, and not ended
  std::int64_t ordered_requests_ = 0;  // of these, not in the engine yet
  GenerationId last_id_ = 0;
  bool closed_ = false, stopping_ = false;
  bool idle_ = false;          // the thread sleeps or has ended, and status_ is up to date
  bool wanted_ = false;        // somebody waits for a new status
  bool cache_wanted_ = false;  // with the cache's state in it
  std::uint64_t looks_ = 0;    // how many statuses were made
  EngineStatus status_;

  std::thread thread_;  // declared last: it uses all of the above
};

}  // namespace kvcache
