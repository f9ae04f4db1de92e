/// @file
/// See live_page.h.
#include "common/server/live_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "common/cli/print.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char kPage[] =
#include "page.html.inc"
    ;
// The bounds of the answer to GET /state.
constexpr std::size_t kMostCells = 4096, kMostSequences = 64, kMostBlocks = 1024;

/// At most the first `most` elements of a list.
template <typename T>
std::span<const T> first(const std::vector<T>& all, std::size_t most) {
  return std::span(all).first(std::min(all.size(), most));
}

/// A letter for each block: "." free, "c" cached, "1" to "9" for its reference count, "9" also for more.
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

/// The blocks of a sequence. In step 2 its reservation, which stands in the cache's state as a block.
const std::vector<std::int32_t>& blocks_of(const EngineStatus::Running& running, const EngineStatus& status) {
  if (!status.cache || !running.block_table.empty()) return running.block_table;
  const auto found = status.cache->sequences.find(running.sequence);
  return found == status.cache->sequences.end() ? running.block_table : found->second.blocks;
}

/// The running sequences, oldest first, each with its stored tokens and its block table.
Json sequences_of(const EngineStatus& status) {
  Json sequences = Json::array();
  for (const EngineStatus::Running& running : first(status.running, kMostSequences)) {
    const std::vector<std::int32_t>& blocks = blocks_of(running, status);
    sequences.push_back({{"sequence", running.sequence},
                         {"tokens", running.tokens},
                         {"blocks", first(blocks, kMostBlocks)},
                         {"all_blocks", blocks.size()}});
  }
  return sequences;
}

/// The waiting sequences, the next to be admitted first.
Json queue_of(const EngineStatus& status) {
  Json queue = Json::array();
  for (const EngineStatus::Waiting& waiting : first(status.queue, kMostSequences)) {
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
                {"stopping", context.stopping},
                {"failure", status.failure},
                {"waiting", status.waiting},
                {"queue", queue_of(status)},
                {"running", sequences_of(status)},
                {"all_running", status.running_count},
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
