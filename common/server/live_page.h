/// @file
/// The page at /: the pool, the block tables and the queue as they are, and a prompt box. One file without
/// external resources, page.html, which is built into the program.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/engine/engine_thread.h"
#include "common/server/http_server.h"

namespace kvcache {

/// The page.
HttpAnswer live_page();

/// What the page tells of the server besides its engine.
struct PageContext {
  std::string model;               ///< its name
  double uptime_s = 0;             ///< since the server began
  bool has_tokenizer = false;      ///< else prompts are ids
  std::int64_t max_sequences = 0;  ///< that run at a time
  bool stopping = false;           ///< it is shutting down
};

/// What the page shows, as GET /state answers it. It is asked for twice a second, so it has a bound: the
/// first 4096 cells of the pool, the first 64 sequences that run, the first 1024 blocks of each, and the
/// first 64 that wait. "all_cells", "all_running", "all_blocks" and "waiting" say how many there are.
nlohmann::ordered_json page_state(const EngineStatus& status, const PageContext& context);

}  // namespace kvcache
