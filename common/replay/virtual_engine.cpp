/// @file
/// See virtual_engine.h. Read `run_pass` first, beside Engine::run_pass.
#include "common/replay/virtual_engine.h"

#include <algorithm>
#include <utility>

namespace kvcache {

VirtualEngine::VirtualEngine(const Traffic& traffic, KvManager& manager, const SchedulerSettings& settings,
                             const PassCost& cost, std::vector<RequestOutcome>& outcomes)
    : traffic_(traffic),
      manager_(manager),
      settings_(settings),
      scheduler_(manager, settings),
      cost_(cost),
      outcomes_(outcomes) {}

void VirtualEngine::add(std::size_t index, double now_ms) {
  const TrafficRequest& request = traffic_.requests[index];
  RequestOutcome& outcome = outcomes_[index];
  outcome.arrival_ms = now_ms;
  ++totals_.requests;
  if (request.tokens_to_store() > manager_.capacity()) {
    outcome.state = RequestOutcome::State::refused;
    outcome.end_ms = now_ms;
    return;
  }
  if (!has_work()) ready_ms_ = std::max(ready_ms_, now_ms);
  outcome.state = RequestOutcome::State::waiting;
  tokens_in_hand_ += request.input_length + request.output_length;
  coming_.push_back(index);
}

/// Gives the scheduler as many waiting requests as a pass could admit. A request is never overtaken, so more
/// of them would change nothing.
void VirtualEngine::hand_over() {
  while (!coming_.empty() && std::ssize(scheduler_.waiting()) < settings_.max_sequences) {
    const std::size_t index = coming_.front();
    coming_.pop_front();
    const auto id = static_cast<std::int32_t>(index) + 1;
    Open& open = *open_.emplace(id, std::make_unique<Open>()).first->second;
    open.id = id;
    open.token_ids = traffic_.prompt_ids(index);
    open.index = index;
    scheduler_.add(open);
  }
}

bool VirtualEngine::run_pass() {
  end_pass();
  hand_over();
  NextPass pass = scheduler_.next();
  for (; pass.stuck != nullptr; pass = scheduler_.next())
    end(static_cast<Open&>(*pass.stuck), RequestOutcome::State::refused);
  if (pass.turns.empty()) return false;
  scheduler_.commit(pass);
  note_pass(pass);
  turns_ = std::move(pass.turns);
  return true;
}

void VirtualEngine::end_pass_by(double now_ms) {
  if (ready_ms_ <= now_ms) end_pass();
}

/// Until then its sequences hold their memory, and their outputs are not there.
void VirtualEngine::end_pass() {
  for (const NextPass::Turn& turn : std::exchange(turns_, {})) {
    if (turn.complete()) take_token(static_cast<Open&>(*turn.sequence));
  }
}

/// Adds a pass to the sums. It ends at `ready_ms_`.
void VirtualEngine::note_pass(const NextPass& pass) {
  const double ms = cost_.of(work_of(pass.plan));
  const std::int64_t sequences = std::ssize(pass.turns);
  ready_ms_ += ms;
  ++totals_.passes;
  totals_.busy_ms += ms;
  totals_.sequence_ms += ms * static_cast<double>(sequences);
  totals_.most_sequences = std::max(totals_.most_sequences, sequences);
  totals_.computed_tokens += pass.plan.tokens();
  for (std::size_t n = 0; n < pass.turns.size(); ++n) {
    Open& open = static_cast<Open&>(*pass.turns[n].sequence);
    const std::int64_t first = pass.plan.positions[static_cast<std::size_t>(pass.plan.row_begin[n])];
    totals_.recomputed_tokens +=
        std::max<std::int64_t>(0, std::min(open.projected, pass.turns[n].end) - first);
    open.projected = std::max(open.projected, pass.turns[n].end);
    if (open.admitted) continue;
    open.admitted = true;
    outcomes_[open.index].state = RequestOutcome::State::running;
    outcomes_[open.index].cached_tokens = manager_.cached_tokens(open.id);
  }
}

/// The pass has given `open` a token. With its last one it gives its memory back.
void VirtualEngine::take_token(Open& open) {
  const TrafficRequest& request = traffic_.requests[open.index];
  const std::int64_t outputs = std::ssize(open.token_ids) - request.input_length;  // before this one
  if (outputs == 0) outcomes_[open.index].first_token_ms = ready_ms_;
  if (request.output_length > 0) {
    open.token_ids.push_back(traffic_.output_id(open.index));
    ++totals_.generated_tokens;
  }
  if (outputs + 1 >= request.output_length) end(open, RequestOutcome::State::done);
}

void VirtualEngine::end(Open& open, RequestOutcome::State state) {
  const TrafficRequest& request = traffic_.requests[open.index];
  outcomes_[open.index].state = state;
  outcomes_[open.index].end_ms = ready_ms_;
  tokens_in_hand_ -= request.input_length + request.output_length;
  scheduler_.remove(open);
  open_.erase(open.id);
}

}  // namespace kvcache
