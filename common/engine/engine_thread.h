/// @file
/// An engine at work on a thread of its own, and the door to it for all other threads. They leave orders
/// (take this request, end that one), which the engine's thread carries out between two passes; when there is
/// nothing to do it sleeps. What happens to a request is told by its listener, on the engine's thread.
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

/// What an engine looks like between two passes. The next one may be planned already: blocks that it needs
/// are then in use, and who is admitted by it runs, with no token stored. In a pass that takes long only the
/// two counts, running_count and waiting, are as new as that pass.
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
    std::int64_t samples = 1;      ///< it, and those that will fork from it
    std::int64_t preemptions = 0;  ///< how often it had to give way
  };
  std::int64_t running_count = 0;   ///< sequences
  std::vector<Running> running;     ///< oldest first
  std::vector<Waiting> queue;       ///< the next to be admitted first
  std::int64_t waiting = 0;         ///< those in the queue, and requests that have just come
  BlocksReport blocks;              ///< of the pool
  KvMemoryReport memory;            ///< reserved and used
  CountersReport counters;          ///< with preemptions
  EngineTotals totals;              ///< since the start
  std::optional<CacheState> cache;  ///< where it was asked for, and the engine has not failed
  std::string failure;              ///< why the engine has failed; empty: it has not
};

/// An engine's own thread, and what others may ask of it.
class EngineThread {
 public:
  /// Why a request was not taken. Neither is the client's fault.
  enum class Refusal : std::uint8_t {
    queue_full,  ///< later there may be room: each request that ends makes some
    closed,      ///< it is being shut down, or has failed
  };

  /// Starts the thread. Nobody else may use `engine` from now on, but for `check`.
  /// @param max_requests  that are there at a time, running and waiting, at most
  EngineThread(Engine& engine, std::int64_t max_requests);
  /// Cancels what is there.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// A request from any thread.
  /// @param arrived  since when it waits
  /// @return its id, or why it is not taken: then the listener is never called
  /// @throws InputError as Engine::check
  [[nodiscard]] std::variant<GenerationId, Refusal> submit(
      GenerationRequest request, OnGenerationEvent on_event,
      Engine::Clock::time_point arrived = Engine::Clock::now());
  /// Requests that are there at most.
  std::int64_t max_requests() const { return max_requests_; }
  /// Requests that are there: submitted, and not ended.
  std::int64_t requests() const;
  /// Ends a request before the next pass. Its listener is told, unless it was before.
  void cancel(GenerationId id);

  /// Takes no more requests; those that are there go on.
  void close();
  /// Waits until none is there.
  /// @return false if some still are after `at_most`
  [[nodiscard]] bool wait_until_idle(std::chrono::milliseconds at_most);
  /// Cancels all that are there.
  void cancel_all();

  /// How the engine is after the pass that is running, or how it was last seen if that takes longer than
  /// `at_most`.
  /// @param with_cache  takes time in proportion to the pool; not there if the wait was too long
  EngineStatus status(std::chrono::milliseconds at_most, bool with_cache = false);

 private:
  struct Submission {
    GenerationId id;
    GenerationRequest request;
    OnGenerationEvent on_event;
    Engine::Clock::time_point at;
  };
  struct Cancellation {
    std::optional<GenerationId> id;  // none: all
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

  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable ordered_, looked_;
  std::deque<Order> orders_;
  std::int64_t requests_ = 0;          // that have not ended
  std::int64_t ordered_requests_ = 0;  // of them, not in the engine yet
  GenerationId last_id_ = 0;
  bool closed_ = false, stopping_ = false;
  bool idle_ = false;          // the thread sleeps or has ended, and status_ says how the engine is
  bool wanted_ = false;        // a new status
  bool cache_wanted_ = false;  // in it
  std::uint64_t looks_ = 0;    // statuses taken
  EngineStatus status_;

  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace kvcache
