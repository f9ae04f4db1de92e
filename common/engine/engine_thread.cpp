/// @file
/// See engine_thread.h. Read `serve` first. The mutex is never held while the engine computes or a listener
/// is called, so no other thread waits for a pass. The mutex is held while a status is made.
#include "common/engine/engine_thread.h"

#include <exception>
#include <utility>

#include "common/base/error.h"

namespace kvcache {

EngineThread::EngineThread(Engine& engine, std::int64_t max_requests)
    : engine_(engine), max_requests_(max_requests) {
  update_status();
  thread_ = std::thread([this] { work(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = stopping_ = true;
  }
  ordered_.notify_one();
  thread_.join();
}

// The engine's side

void EngineThread::work() {
  std::optional<std::string> failure;
  try {
    serve();
  } catch (const std::exception& error) {
    failure = words_of(error);
  }
  std::unique_lock lock(mutex_);
  closed_ = true;
  if (failure) status_.failure = *failure;
  lock.unlock();
  if (failure) engine_.fail();
  lock.lock();
  carry_out_orders(lock);  // requests submitted meanwhile are told of the failure, too
  lock.unlock();
  engine_.cancel_all();  // a failed engine has no requests left
  lock.lock();
  ordered_requests_ = 0;
  if (!failure) update_status();
  idle_ = true;
  looked_.notify_all();
}

void EngineThread::serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    carry_out_orders(lock);
    lock.unlock();
    const bool worked = engine_.run_pass([this] {
      const std::lock_guard planned(mutex_);
      count_sequences();  // the pass may be long
    });
    lock.lock();
    if (wanted_ || !worked) update_status();
    if (worked || stopping_ || !orders_.empty()) continue;
    idle_ = true;
    looked_.notify_all();
    ordered_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
  }
}

/// Carries out the orders that are in the list now; later orders wait for the next pass. An order leaves the
/// list just before it is carried out, so if the engine fails with it, `work` finds the others in the list.
void EngineThread::carry_out_orders(std::unique_lock<std::mutex>& lock) {
  for (std::size_t left = orders_.size(); left > 0; --left) {
    Order order = std::move(orders_.front());
    orders_.pop_front();
    const bool is_submission = std::holds_alternative<Submission>(order);
    lock.unlock();
    carry_out(std::move(order));
    lock.lock();
    ordered_requests_ -= is_submission ? 1 : 0;
    count_sequences();
  }
  count_sequences();
}

void EngineThread::carry_out(Order order) {
  if (auto* submission = std::get_if<Submission>(&order)) {
    engine_.add(submission->id, std::move(submission->request), std::move(submission->on_event),
                submission->at);
  } else if (const auto& id = std::get<Cancellation>(order).id) {
    engine_.cancel(*id);
  } else {
    engine_.cancel_all();
  }
}

/// Cheap, so it is done more often than the rest of the status.
void EngineThread::count_sequences() {
  status_.running_count = std::ssize(engine_.scheduler().running());
  status_.waiting = std::ssize(engine_.scheduler().waiting());
}

void EngineThread::update_status() {
  const Scheduler& scheduler = engine_.scheduler();
  const KvManager& manager = engine_.manager();
  count_sequences();
  status_.running.clear();
  for (const ScheduledSequence* sequence : scheduler.running())
    status_.running.push_back({sequence->id, sequence->stored, manager.block_table(sequence->id)});
  status_.queue.clear();
  for (const ScheduledSequence* sequence : scheduler.waiting())
    status_.queue.push_back(
        {sequence->id, std::ssize(sequence->token_ids), 1 + sequence->forks, sequence->preemptions});
  status_.blocks = manager.blocks();
  status_.memory = manager.memory();
  status_.counters = manager.counters();
  status_.counters.preemptions = scheduler.preemptions();
  status_.totals = engine_.totals();
  status_.cache.reset();
  if (cache_wanted_) status_.cache = manager.state();
  wanted_ = cache_wanted_ = false;
  ++looks_;
  looked_.notify_all();
}

// The side of all others

void EngineThread::enqueue(Order order) {
  orders_.push_back(std::move(order));
  idle_ = false;
  ordered_.notify_one();
}

std::variant<GenerationId, EngineThread::Refusal> EngineThread::submit(GenerationRequest request,
                                                                       OnGenerationEvent on_event,
                                                                       Engine::Clock::time_point arrived) {
  engine_.check(request);
  const std::lock_guard lock(mutex_);
  if (closed_) return Refusal::closed;
  if (requests_ >= max_requests_) return Refusal::queue_full;
  // The request makes room before its listener hears of its end, so the listener's owner may submit another.
  // A listener that has thrown is told of the end again, by the engine that fails.
  auto tell = [this, on_event = std::move(on_event), counted = true](const GenerationEvent& event) mutable {
    if (event.summary && std::exchange(counted, false)) {
      const std::lock_guard ended(mutex_);
      --requests_;
    }
    on_event(event);
  };
  enqueue(Submission{++last_id_, std::move(request), std::move(tell), arrived});
  ++requests_;  // last: what comes before may find no memory
  ++ordered_requests_;
  return last_id_;
}

std::int64_t EngineThread::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void EngineThread::cancel(GenerationId id) {
  const std::lock_guard lock(mutex_);
  if (status_.failure.empty()) enqueue(Cancellation{id});
}

void EngineThread::cancel_all() {
  const std::lock_guard lock(mutex_);
  if (status_.failure.empty()) enqueue(Cancellation{});
}

void EngineThread::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool EngineThread::wait_until_idle(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return looked_.wait_for(lock, at_most, [this] { return idle_; });
}

EngineStatus EngineThread::status(std::chrono::milliseconds at_most, bool with_cache) {
  std::unique_lock lock(mutex_);
  if (!idle_) {
    wanted_ = true;
    cache_wanted_ = cache_wanted_ || with_cache;
    looked_.wait_for(lock, at_most, [this, seen = looks_] { return idle_ || looks_ != seen; });
  }
  // While the engine's thread sleeps, the engine belongs to the thread that holds the mutex.
  if (idle_ && with_cache && status_.failure.empty()) status_.cache = engine_.manager().state();
  EngineStatus status = status_;
  status.waiting += ordered_requests_;
  if (!with_cache) status.cache.reset();
  return status;
}

}  // namespace kvcache
