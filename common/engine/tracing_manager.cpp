/// @file
/// See tracing_manager.h. Each line has two parts: the event, and under "changes" what is different after it.
#include "common/engine/tracing_manager.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "fmt/format.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here
using Blocks = std::vector<std::int32_t>;

// What happened

Json pairs_of(const std::vector<BlockCopy>& copies) {
  Json json = Json::array();
  for (const BlockCopy& copy : copies) json.push_back({copy.from, copy.to});
  return json;
}

/// Adds a list unless it is empty.
void add_list(Json& line, const char* name, Json list) {
  if (!list.empty()) line[name] = std::move(list);
}

/// The blocks that were found for `sequence`, which is new in the plan that led to `now`. For a block that it
/// has copied already, the original.
Blocks hits_of(const CacheState& now, std::int32_t sequence, std::int64_t cached_tokens,
               const PassPlan& plan) {
  Blocks hits = now.sequences.at(sequence).blocks;
  hits.resize(static_cast<std::size_t>((cached_tokens + now.block_size - 1) / now.block_size));
  for (const BlockCopy& copy : plan.copies) std::ranges::replace(hits, copy.to, copy.from);
  return hits;
}

bool is_findable(const CacheState& state, std::int32_t block) {
  return !state.contents.empty() && state.contents[static_cast<std::size_t>(block)].identity != 0;
}

// What has changed

Json json_of(const CacheState::Content& content) {
  if (content.identity == 0) return nullptr;
  return {{"hash", fmt::format("{:016x}", content.hash)},
          {"identity", content.identity},
          {"parent", content.parent}};
}

/// The entries of a list over blocks, or host blocks, that differ, each under its number.
template <typename Value, typename ToJson>
Json differences(const std::vector<Value>& before, const std::vector<Value>& now, ToJson to_json) {
  Json json = Json::object();
  for (std::size_t n = 0; n < now.size(); ++n) {
    if (now[n] != before[n]) json[std::to_string(n)] = to_json(now[n]);
  }
  return json;
}

/// The object under `name`, made if it is not there. The library's own operator[] of a null value, which
/// makes one too, leaves a broken value if it finds no memory.
Json& object_in(Json& json, const char* name) {
  if (!json.contains(name)) json[name] = Json::object();
  return json[name];
}

/// Block tables and lengths of the sequences that differ; null for a sequence that is gone.
void add_sequences(Json& changes, const CacheState& before, const CacheState& now) {
  for (const auto& [id, sequence] : before.sequences) {
    if (!now.sequences.contains(id)) object_in(changes, "tables")[std::to_string(id)] = nullptr;
  }
  for (const auto& [id, sequence] : now.sequences) {
    const auto known = before.sequences.find(id);
    const bool is_new = known == before.sequences.end();
    if (is_new || known->second.blocks != sequence.blocks)
      object_in(changes, "tables")[std::to_string(id)] = sequence.blocks;
    if (sequence.length != (is_new ? 0 : known->second.length))
      object_in(changes, "lengths")[std::to_string(id)] = sequence.length;
  }
}

/// How one order of free blocks became the other: blocks left, blocks entered at the front and at the back.
/// If these do not explain the change (a plan was taken back), the whole order.
Json queue_change(const Blocks& before, const Blocks& now) {
  const std::set<std::int32_t> were_free(before.begin(), before.end()), are_free(now.begin(), now.end());
  Blocks taken, stayed, front, back;
  for (const std::int32_t block : before) (are_free.contains(block) ? stayed : taken).push_back(block);
  for (std::size_t n = 0; n < now.size(); ++n) {
    if (!were_free.contains(now[n])) (n == front.size() ? front : back).push_back(now[n]);
  }
  Blocks explained = front;
  explained.insert(explained.end(), stayed.begin(), stayed.end());
  explained.insert(explained.end(), back.begin(), back.end());
  if (explained != now) return now;
  Json json = Json::object();
  add_list(json, "taken", taken);
  add_list(json, "front", front);
  add_list(json, "back", back);
  return json;
}

Json changes_between(const CacheState& before, const CacheState& now) {
  Json changes = Json::object();
  add_sequences(changes, before, now);
  add_list(changes, "references",
           differences(before.references, now.references, [](std::int32_t count) { return count; }));
  if (before.free != now.free) changes["free"] = queue_change(before.free, now.free);
  add_list(changes, "contents", differences(before.contents, now.contents, json_of));
  add_list(changes, "host", differences(before.host, now.host, json_of));
  return changes;
}

}  // namespace

TracingManager::TracingManager(KvManager& traced, std::ostream& out, const std::string& step,
                               const std::string& model, TextOfToken text_of_token)
    : traced_(traced), out_(out), text_of_token_(std::move(text_of_token)), before_(traced.state()) {
  write({{"schema", 1},
         {"step", step},
         {"model", model},
         {"block_size", before_.block_size},
         {"blocks", before_.references.size()},
         {"host_blocks", before_.host.size()}});
}

std::optional<PassPlan> TracingManager::plan(std::span<const Work> work) {
  std::optional<PassPlan> plan = traced_.plan(work);
  std::vector<std::int32_t> sequences;
  for (const Work& wanted : work) sequences.push_back(wanted.sequence);
  if (plan) {
    write_plan(work, *plan);
    if (std::ranges::find_first_of(sequences, refused_) != sequences.end()) refused_.clear();
  } else if (sequences != refused_) {  // a waiting sequence is tried at every pass: one line is enough
    write({{"event", "refuse"}, {"sequences", sequences}});
    refused_ = std::move(sequences);
  }
  return plan;
}

void TracingManager::write_plan(std::span<const Work> work, const PassPlan& plan) {
  const CacheState now = traced_.state();
  Json line = {{"event", "plan"}, {"sequences", Json::array()}};
  std::set<std::int32_t> kept;  // blocks that were found
  for (std::size_t s = 0; s < work.size(); ++s) {
    const std::int32_t first_row = plan.row_begin[s];
    Json sequence = line_of(work[s], plan.positions[static_cast<std::size_t>(first_row)]);
    if (!before_.sequences.contains(work[s].sequence)) {
      const Blocks hits = hits_of(now, work[s].sequence, traced_.cached_tokens(work[s].sequence), plan);
      add_list(sequence, "hits", hits);
      kept.insert(hits.begin(), hits.end());
    }
    line["sequences"].push_back(std::move(sequence));
  }
  std::set<std::int32_t> moved_to;
  for (const BlockCopy& move : plan.swaps_in) moved_to.insert(move.to);
  for (const BlockCopy& copy : plan.copies) moved_to.insert(copy.to);
  Blocks fresh, evicted;
  for (const std::int32_t block : before_.free) {
    if (now.references[static_cast<std::size_t>(block)] == 0) continue;
    if (!moved_to.contains(block) && kept.contains(block)) continue;  // a hit
    if (!moved_to.contains(block)) fresh.push_back(block);
    if (is_findable(before_, block)) evicted.push_back(block);
  }
  add_list(line, "evicted", evicted);
  add_list(line, "swaps_out", pairs_of(plan.swaps_out));
  add_list(line, "swaps_in", pairs_of(plan.swaps_in));
  add_list(line, "fresh", fresh);
  add_list(line, "copies", pairs_of(plan.copies));
  write_with_changes(std::move(line));
}

/// One sequence of a plan: the positions that are computed, and its tokens that no earlier line has.
Json TracingManager::line_of(const Work& work, std::int32_t first_row) {
  std::size_t& told = told_[work.sequence];
  const std::span<const std::int32_t> untold = work.token_ids.subspan(told);
  told = work.token_ids.size();
  Json line = {{"sequence", work.sequence},
               {"first", first_row},
               {"length", work.token_ids.size()},
               {"token_ids", Blocks(untold.begin(), untold.end())}};
  if (text_of_token_) {
    Json& texts = line["texts"] = Json::array();
    for (const std::int32_t id : untold) texts.push_back(text_of_token_(id));
  }
  return line;
}

void TracingManager::commit(const PassPlan& plan) {
  traced_.commit(plan);
  write_with_changes({{"event", "commit"}, {"sequences", plan.sequences}});
}

void TracingManager::abort(const PassPlan& plan) {
  traced_.abort(plan);
  const CacheState now = traced_.state();
  for (const std::int32_t id : plan.sequences) {
    const auto sequence = now.sequences.find(id);
    told_[id] = sequence == now.sequences.end() ? 0 : static_cast<std::size_t>(sequence->second.length);
  }
  write_with_changes({{"event", "abort"}, {"sequences", plan.sequences}});
}

void TracingManager::free(std::int32_t sequence) {
  traced_.free(sequence);
  write_free(sequence, "preempted");
}

void TracingManager::discard(const Work& work, std::int64_t cached_tokens) {
  traced_.discard(work, cached_tokens);
  write_free(work.sequence, "error");
}

void TracingManager::write_free(std::int32_t sequence, const std::string& unsaid_reason) {
  told_.erase(sequence);
  const auto reason = reasons_.extract(sequence);
  write_with_changes({{"event", "free"},
                      {"sequence", sequence},
                      {"reason", reason.empty() ? unsaid_reason : reason.mapped()}});
}

void TracingManager::fork(std::int32_t parent, std::int32_t child) {
  traced_.fork(parent, child);
  told_[child] = told_[parent];
  write_with_changes({{"event", "fork"}, {"parent", parent}, {"child", child}});
}

void TracingManager::pin(std::int32_t sequence) {
  traced_.pin(sequence);
  write_with_changes({{"event", "pin"}, {"sequence", sequence}});
}

void TracingManager::end(const BlocksReport& blocks, const CountersReport& counters) {
  write({{"event", "end"},
         {"blocks", {{"free", blocks.free}, {"cached", blocks.cached}, {"in_use", blocks.in_use}}},
         {"counters",
          {{"prefix_hits", counters.prefix_hits},
           {"evictions", counters.evictions},
           {"preemptions", counters.preemptions},
           {"copies", counters.copies},
           {"swaps_out", counters.swaps_out},
           {"swaps_in", counters.swaps_in}}}});
}

void TracingManager::write_with_changes(Json line) {
  CacheState now = traced_.state();
  line["changes"] = changes_between(before_, now);
  before_ = std::move(now);
  write(line);
}

void TracingManager::write(const Json& line) {
  out_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace kvcache
