/// @file
/// See scheduler.h. Read `next` first.
#include "common/engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

std::int64_t length(const ScheduledSequence& sequence) {
  return std::ssize(sequence.token_ids);
}

/// What the manager is asked for. A sequence in the middle of its prompt asks for its first tokens only.
std::vector<Work> work_of(std::span<const NextPass::Turn> turns) {
  std::vector<Work> work;
  for (const NextPass::Turn& turn : turns) {
    const std::span<const std::int32_t> ids = turn.sequence->token_ids;
    work.push_back({turn.sequence->id, ids.first(static_cast<std::size_t>(turn.end)), turn.sequence->salt});
  }
  return work;
}

}  // namespace

Scheduler::Scheduler(KvManager& manager, const SchedulerSettings& settings)
    : manager_(manager), settings_(settings) {
  if (settings.max_sequences < 1)
    throw InputError(fmt::format("max_sequences is {}; it must be at least 1", settings.max_sequences));
  if (settings.max_batch_tokens < settings.max_sequences) {
    throw InputError(
        fmt::format("max_batch_tokens is {}, fewer than max_sequences, {}; each of them needs a row",
                    settings.max_batch_tokens, settings.max_sequences));
  }
}

NextPass Scheduler::next() {
  if (prepared_) return take_prepared();
  NextPass pass;
  if ((pass.stuck = outgrown()) != nullptr) return pass;
  if (settings_.prefill_alone && admit_alone(pass)) return pass;
  if (preemption_is_forced()) {
    preempt_youngest();
    if (settings_.prefill_alone && running_.empty() && admit_alone(pass)) return pass;
  }

  choose_turns(pass);
  while (!running_.empty()) {
    if (std::optional<PassPlan> plan = manager_.plan(work_of(pass.turns))) {
      pass.plan = *std::move(plan);
      return pass;
    }
    pass.turns.pop_back();
    if (running_.size() == 1) {
      // Alone it cannot grow, and yet the memory could hold it (`outgrown`): it has copies of what it can
      // share.
      preempt_youngest();
      return next();
    }
    ++running_.back()->preemptions;
    preempt_youngest();
  }
  // No sequence holds memory, and still the next one was not admitted.
  if (!waiting_.empty()) pass.stuck = waiting_.front();
  return pass;
}

void Scheduler::prepare() {
  if (settings_.prefill_alone || preemption_is_forced() || outgrown() != nullptr) return;
  NextPass pass;
  choose_turns(pass);
  if (running_.empty()) return;
  std::optional<PassPlan> plan = manager_.plan(work_of(pass.turns));
  if (!plan) return;  // a preemption waits: a sequence may end with this pass and make room
  pass.plan = *std::move(plan);
  prepared_ = std::move(pass);
}

/// Puts the ids that are known now into the prepared plan.
NextPass Scheduler::take_prepared() {
  NextPass pass = *std::exchange(prepared_, std::nullopt);
  for (std::size_t n = 0; n < pass.turns.size(); ++n) {
    const NextPass::Turn& turn = pass.turns[n];
    const auto row = static_cast<std::size_t>(pass.plan.logits_rows[n]);
    pass.plan.token_ids[row] = turn.sequence->token_ids[static_cast<std::size_t>(turn.end - 1)];
  }
  return pass;
}

/// Undoes `prepare`: the sequences that it admitted wait again.
void Scheduler::drop_prepared() {
  if (!prepared_) return;
  manager_.abort(prepared_->plan);
  prepared_.reset();
  while (!running_.empty() && running_.back()->stored == 0) {
    waiting_.push_front(running_.back());
    running_.pop_back();
  }
}

void Scheduler::commit(const NextPass& pass) {
  manager_.commit(pass.plan);
  for (const NextPass::Turn& turn : pass.turns) {
    turn.sequence->stored = turn.end;
    turn.sequence->decodes = turn.complete();
  }
  ++passes_;
}

bool Scheduler::preemption_is_forced() const {
  if (settings_.preempt_every == 0 || (passes_ + 1) % settings_.preempt_every != 0) return false;
  return !running_.empty() && running_.back()->decodes;  // else a prompt might never end
}

/// A running sequence with more tokens than the memory could ever hold: no preemption can make room for it.
ScheduledSequence* Scheduler::outgrown() const {
  const auto found = std::ranges::find_if(running_, [this](const ScheduledSequence* sequence) {
    return length(*sequence) > manager_.capacity_for(sequence->token_ids, sequence->salt);
  });
  return found == running_.end() ? nullptr : *found;
}

/// Makes the turns of the running sequences, oldest first, and of those that are admitted beside them. A
/// sequence that decodes gets one row. The prompt in progress gets the rows that the newly admitted ones
/// leave.
void Scheduler::choose_turns(NextPass& pass) {
  std::int64_t rows = settings_.max_batch_tokens;  // still to be given
  std::optional<std::size_t> prompt;               // the turn of the prompt in progress
  for (ScheduledSequence* sequence : running_) {
    pass.turns.push_back({sequence, length(*sequence)});
    if (sequence->decodes) {
      --rows;
    } else {
      prompt = pass.turns.size() - 1;
    }
  }
  const std::int64_t wanted = prompt ? length(*running_[*prompt]) - running_[*prompt]->stored : 0;
  const bool ends = wanted <= rows;  // whether the prompt ends with this pass
  std::int64_t spare = ends ? rows - wanted : rows / 2;
  if (!settings_.prefill_alone) {
    while (const std::int64_t taken = admit(pass, spare, /*whole=*/!ends)) {
      spare -= taken;
      rows -= taken;
    }
  }
  if (!ends) pass.turns[*prompt].end = running_[*prompt]->stored + rows;
}

/// Whether the rules, apart from memory, admit the first waiting sequence.
bool Scheduler::may_admit() const {
  if (waiting_.empty()) return false;
  if (running_.empty()) return true;
  const ScheduledSequence& first = *waiting_.front();
  std::int64_t seats = 1 + first.forks;
  for (const ScheduledSequence* sequence : running_) seats += 1 + sequence->forks;
  return seats <= settings_.max_sequences && first.preemptions < kMaxPreemptions;
}

void Scheduler::admit_front() {
  running_.push_back(waiting_.front());
  waiting_.pop_front();
}

/// Admits the first waiting sequence with a pass of its own, if it fits.
bool Scheduler::admit_alone(NextPass& pass) {
  if (!may_admit()) return false;
  pass.turns = {{waiting_.front(), length(*waiting_.front())}};
  std::optional<PassPlan> plan = manager_.plan(work_of(pass.turns));
  if (!plan) {
    pass.turns.clear();
    return false;
  }
  pass.plan = *std::move(plan);
  admit_front();
  return true;
}

/// Admits the first waiting sequence if rows are left and the whole of it fits beside the whole of the
/// others. The pass computes as many of its tokens as there are rows.
/// @param whole  admit it only if there are rows for all of its tokens
/// @return rows that it takes; 0: it is not admitted
std::int64_t Scheduler::admit(NextPass& pass, std::int64_t rows, bool whole) {
  if (rows == 0 || !may_admit()) return 0;
  ScheduledSequence& first = *waiting_.front();
  pass.turns.push_back({&first, length(first)});
  const std::optional<PassPlan> plan = manager_.plan(work_of(pass.turns));
  if (plan) manager_.abort(*plan);
  // Cached tokens need no row.
  const std::int64_t needed = plan ? plan->row_begin.back() - plan->row_begin.end()[-2] : 0;
  if (!plan || (whole && needed > rows)) {
    pass.turns.pop_back();
    return 0;
  }
  admit_front();
  const std::int64_t taken = std::min(rows, needed);
  pass.turns.back().end = length(first) - needed + taken;
  return taken;
}

/// Gives the memory of the youngest running sequence back. All waiting ones are younger, so it waits in
/// front.
void Scheduler::preempt_youngest() {
  ScheduledSequence& youngest = *running_.back();
  manager_.free(youngest.id);
  youngest.stored = 0;
  youngest.decodes = false;
  waiting_.push_front(&youngest);
  running_.pop_back();
  ++preemptions_;
}

void Scheduler::add(ScheduledSequence& sequence) {
  if (waiting_.empty()) drop_prepared();  // the next pass may admit it
  waiting_.push_back(&sequence);
}

void Scheduler::fork(ScheduledSequence& parent, std::span<ScheduledSequence* const> children) {
  drop_prepared();
  for (ScheduledSequence* child : children) {
    manager_.fork(parent.id, child->id);
    child->salt = parent.salt;
    child->stored = parent.stored;
    child->decodes = true;
  }
  parent.forks = 0;
  running_.insert(std::next(std::ranges::find(running_, &parent)), children.begin(), children.end());
}

void Scheduler::remove(ScheduledSequence& sequence) {
  const auto has = [&sequence](const auto& list) { return std::ranges::find(list, &sequence) != list.end(); };
  if (!has(running_) && !has(waiting_)) return;
  drop_prepared();
  manager_.free(sequence.id);
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
}

void Scheduler::discard(ScheduledSequence& sequence, std::int64_t cached_tokens) {
  drop_prepared();  // a sequence that it admits may share what is forgotten now
  manager_.discard({sequence.id, sequence.token_ids, sequence.salt}, cached_tokens);
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
}

void Scheduler::check_invariants() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  std::unordered_set<const ScheduledSequence*> seen;
  std::int64_t seats = 0, prompts = 0;
  expect(!prepared_ || prepared_->turns.size() == running_.size(),
         "a prepared pass is not of those that run");
  for (std::size_t n = 0; n < running_.size(); ++n) {
    const ScheduledSequence* sequence = running_[n];
    const std::int64_t stored = prepared_ ? prepared_->turns[n].end : sequence->stored;
    expect(!prepared_ || prepared_->turns[n].sequence == sequence, "a prepared pass has others than run");
    expect(seen.insert(sequence).second, "a sequence runs twice");
    expect(stored > 0, "a sequence runs and has nothing stored");
    prompts += stored + 1 < length(*sequence) ? 1 : 0;
    expect(sequence->token_ids.back() != kUnknownToken, "a token has stayed unknown");
    seats += 1 + sequence->forks;
  }
  expect(seats <= settings_.max_sequences, "more sequences run than may");
  expect(prompts <= 1, "two sequences are in the middle of their prompts");
  for (const ScheduledSequence* sequence : waiting_) {
    expect(seen.insert(sequence).second, "a sequence that waits is there twice");
    expect(sequence->stored == 0, "a sequence waits and has something stored");
    expect(sequence->preemptions <= kMaxPreemptions, "a sequence was preempted too often");
  }
}

}  // namespace kvcache
