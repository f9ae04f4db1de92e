/// @file
/// The counts of a server and its engine, as text for Prometheus
/// (https://prometheus.io/docs/instrumenting/exposition_formats/).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/engine/engine_thread.h"
#include "common/server/http_server.h"

namespace kvcache {

/// What the text is made of.
struct ServerMetrics {
  double uptime_s = 0;                          ///< since the server began
  HttpCounts http;                              ///< of its connections
  std::map<std::string, std::int64_t> outputs;  ///< ended outputs by finish reason
  const EngineStatus* engine = nullptr;         ///< nullptr: the model is being loaded
};

/// The text of GET /metrics.
std::string metrics_text(const ServerMetrics& metrics);

}  // namespace kvcache
