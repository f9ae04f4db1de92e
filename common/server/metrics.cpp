/// @file
/// See metrics.h.
#include "common/server/metrics.h"

#include "fmt/format.h"

namespace kvcache {
namespace {

/// Builds the text, metric by metric.
class MetricsText {
 public:
  template <typename Number>
  void add(const std::string& name, const char* type, const char* help, Number value) {
    begin(name, type, help);
    text_ += fmt::format("kvcache_{} {}\n", name, value);
  }
  /// The head of a metric with labels; `add_labelled` follows.
  void begin(const std::string& name, const char* type, const char* help) {
    text_ += fmt::format("# HELP kvcache_{} {}\n# TYPE kvcache_{} {}\n", name, help, name, type);
  }
  template <typename Label>
  void add_labelled(const std::string& name, const char* label, const Label& value, std::int64_t count) {
    text_ += fmt::format("kvcache_{}{{{}=\"{}\"}} {}\n", name, label, value, count);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

void add_engine(MetricsText& text, const EngineStatus& status) {
  const EngineTotals& totals = status.totals;
  text.add("sequences_running", "gauge", "Sequences that hold memory.", status.running_count);
  text.add("sequences_waiting", "gauge", "Sequences that wait, preempted ones among them.", status.waiting);
  text.begin("blocks", "gauge", "Blocks of the pool.");
  text.add_labelled("blocks", "state", "free", status.blocks.free);
  text.add_labelled("blocks", "state", "cached", status.blocks.cached);
  text.add_labelled("blocks", "state", "in_use", status.blocks.in_use);
  text.add("kv_used_bytes", "gauge", "Keys and values stored.", status.memory.used_bytes);
  text.add("kv_reserved_bytes", "gauge", "Memory given out for them.", status.memory.reserved_bytes);
  text.add("kv_pool_bytes", "gauge", "Memory there is for them.", status.memory.pool_bytes);
  text.add("requests_total", "counter", "Requests that have ended.", totals.requests);
  text.add("passes_total", "counter", "Forward passes.", totals.passes);
  text.add("computed_tokens_total", "counter", "Rows of all passes.", totals.computed_tokens);
  text.add("generated_tokens_total", "counter", "Tokens told to clients.", totals.generated_tokens);
  text.add("model_seconds_total", "counter", "Time in passes.", totals.model_ms / 1e3);
  text.add("host_seconds_total", "counter", "Time between passes.", totals.host_ms / 1e3);
  text.add("prefix_hits_total", "counter", "Blocks found in the cache.", status.counters.prefix_hits);
  text.add("evictions_total", "counter", "Cached blocks given to another use.", status.counters.evictions);
  text.add("preemptions_total", "counter", "Sequences that gave way.", status.counters.preemptions);
  text.add("copies_total", "counter", "Blocks copied on write.", status.counters.copies);
  text.add("swaps_out_total", "counter", "Blocks moved to the host tier.", status.counters.swaps_out);
  text.add("swaps_in_total", "counter", "Blocks brought back from it.", status.counters.swaps_in);
}

}  // namespace

std::string metrics_text(const ServerMetrics& metrics) {
  MetricsText text;
  const bool up = metrics.engine != nullptr && metrics.engine->failure.empty();
  text.add("up", "gauge", "Whether the engine is loaded and has not failed.", up ? 1 : 0);
  text.add("uptime_seconds", "gauge", "Since the server began.", metrics.uptime_s);
  text.add("http_connections", "gauge", "Open now.", metrics.http.connections);
  text.begin("http_responses_total", "counter", "Answers begun, by status.");
  for (const auto& [status, count] : metrics.http.responses)
    text.add_labelled("http_responses_total", "code", status, count);
  text.add("http_departures_total", "counter", "Clients that left before their answer's end.",
           metrics.http.departures);
  text.begin("outputs_total", "counter", "Outputs that have ended, by reason.");
  for (const auto& [reason, count] : metrics.outputs)
    text.add_labelled("outputs_total", "reason", reason, count);
  if (metrics.engine != nullptr) add_engine(text, *metrics.engine);
  return std::move(text).text();
}

}  // namespace kvcache
