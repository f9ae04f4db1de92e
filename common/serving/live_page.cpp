/// @file
/// See live_page.h.
#include "common/serving/live_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/cli/print.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char kPage[] =
#include "page.html.inc"
    ;
constexpr std::size_t kMostCells = 4096;

/// A letter for each block: "." free, "c" cached, "1" to "9" the sequences that refer to it, 9 or more.
std::string cells_of(const CacheState& cache) {
  std::string cells(std::min(cache.references.size(), kMostCells), '.');
  for (std::size_t block = 0; block < cells.size(); ++block) {
    const std::int32_t references = cache.references[block];
    const bool is_findable = block < cache.contents.size() && cache.contents[block].identity != 0;
    if (references > 0) {
      cells[block] = static_cast<char>('0' + std::min(references, 9));
    } else if (is_findable) {
      cells[block] = 'c';
    }
  }
  return cells;
}

/// A sequence that was admitted by a pass that is still to come has a table and no tokens.
Json sequences_of(const EngineStatus& status) {
  Json sequences = Json::array();
  for (const EngineStatus::Running& running : status.running) {
    Json blocks = running.block_table;
    if (status.cache && running.block_table.empty()) {  // step 2, whose reservations are blocks
      const auto found = status.cache->sequences.find(running.sequence);
      if (found != status.cache->sequences.end()) blocks = found->second.blocks;
    }
    sequences.push_back({{"sequence", running.sequence}, {"tokens", running.tokens}, {"blocks", blocks}});
  }
  return sequences;
}

Json queue_of(const EngineStatus& status) {
  Json queue = Json::array();
  for (const EngineStatus::Waiting& waiting : status.queue) {
    queue.push_back({{"sequence", waiting.sequence},
                     {"tokens", waiting.tokens},
                     {"samples", waiting.samples},
                     {"preemptions", waiting.preemptions}});
  }
  return queue;
}

}  // namespace

HttpAnswer live_page() {
  HttpAnswer answer;
  answer.content_type = "text/html; charset=utf-8";
  answer.body = kPage;
  answer.headers = {{"Content-Security-Policy",
                     "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                     "img-src data:; frame-ancestors 'none'"}};
  return answer;
}

Json page_state(const EngineStatus& status, const PageContext& context) {
  Json state = {{"model", context.model},
                {"uptime_s", context.uptime_s},
                {"has_tokenizer", context.has_tokenizer},
                {"max_sequences", context.max_sequences},
                {"failure", status.failure},
                {"waiting", status.waiting},
                {"queue", queue_of(status)},
                {"running", sequences_of(status)},
                {"blocks", json_of(status.blocks)},
                {"memory", json_of(status.memory)},
                {"counters", json_of(status.counters)},
                {"generated_tokens", status.totals.generated_tokens},
                {"computed_tokens", status.totals.computed_tokens},
                {"passes", status.totals.passes},
                {"requests", status.totals.requests}};
  if (status.cache) {
    state["block_size"] = status.cache->block_size;
    state["cells"] = cells_of(*status.cache);
    state["all_cells"] = status.cache->references.size();
    state["host"] = {
        {"total", status.cache->host.size()},
        {"used", std::ranges::count_if(status.cache->host, [](const CacheState::Content& content) {
           return content.identity != 0;
         })}};
  }
  return state;
}

}  // namespace kvcache
