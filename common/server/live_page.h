/// @file
/// The page at /: the pool, the block tables, the queue, and a prompt box. It is one file, page.html, without
/// external resources, and is built into the program.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/engine/engine_thread.h"
#include "common/server/http_server.h"

namespace kvcache {

/// The answer with the page.
HttpAnswer live_page();

/// What the page shows besides the engine's status.
struct PageContext {
  std::string model;               ///< its name, as clients know it
  double uptime_s = 0;             ///< since the server began
  bool has_tokenizer = false;      ///< false: prompts are ids
  std::int64_t max_sequences = 0;  ///< running at a time
  bool stopping = false;           ///< the server is shutting down
};

/// What GET /state answers and the page draws. The page asks twice a second, so the answer is bounded: the
/// first 4096 cells of the pool, the first 64 running sequences, the first 1024 blocks of each, and the first
/// 64 waiting sequences. "all_cells", "all_running", "all_blocks" and "waiting" say how many there are.
nlohmann::ordered_json page_state(const EngineStatus& status, const PageContext& context);

}  // namespace kvcache
