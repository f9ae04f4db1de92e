/// @file
/// See print.h. The JSON names are a contract (schema 1): new names may be added, old ones never change.

#include "common/cli/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here

// ---- JSON ----

/// The double that prints as the shortest decimal form of `number`: 0.1F as 0.1, although the double of the
/// same value prints as 0.10000000149011612. A reader that rounds it to float gets `number` again. Should the
/// two roundings ever disagree, the exact value is printed.
double shortest(float number) {
  if (!std::isfinite(number)) return number;  // printed as null
  char text[32];
  const char* const end = std::to_chars(std::begin(text), std::end(text), number).ptr;
  double decimal = 0;
  std::from_chars(std::begin(text), end, decimal);
  return static_cast<float>(decimal) == number ? decimal : number;
}

Json json_of(const SequenceReport& sequence) {
  Json json = {{"prompt_ids", sequence.prompt_ids},
               {"output_ids", sequence.output_ids},
               {"text", sequence.text},
               {"finish_reason", sequence.finish_reason},
               {"cached_tokens", sequence.cached_tokens},
               {"block_table", sequence.block_table},
               {"ttft_ms", sequence.ttft_ms}};
  if (!sequence.error.empty()) json["error"] = sequence.error;
  if (!sequence.logits.empty()) {
    Json& logits = json["logits"] = Json::array();
    for (const float logit : sequence.logits) logits.push_back(shortest(logit));
  }
  return json;
}

/// The number, or null if it was not measured.
Json json_of(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}

Json json_of(const TimingReport& timing) {
  return {{"prefill_ms", timing.prefill_ms},
          {"decode_ms", timing.decode_ms},
          {"prefill_tokens", timing.prefill_tokens},
          {"decode_tokens", timing.decode_tokens},
          {"ms_per_token", json_of(timing.ms_per_token)},
          {"prefill_tokens_per_s", json_of(timing.prefill_tokens_per_s)},
          {"decode_tokens_per_s", json_of(timing.decode_tokens_per_s)},
          {"decode_pass_ms", timing.decode_pass_ms}};
}

// ---- text ----

/// "512 B", "1.5 KiB", "3.0 GiB".
std::string readable_bytes(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (size >= 1023.95 && unit + 1 < std::size(units)) {  // 1024.0 prints as 1.0 of the next unit
    size /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", size, units[unit]);
}

/// The rate in words, "- tokens/s" if it was not measured.
std::string rate(std::optional<double> tokens_per_s) {
  if (!tokens_per_s) return "- tokens/s";
  return *tokens_per_s < 100
             ? fmt::format("{:.1f} tokens/s", *tokens_per_s)
             : fmt::format("{} tokens/s", grouped(std::llround(std::min(*tokens_per_s, 1e15))));
}

std::string counted(std::int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : many);
}

void append_sequences(std::string& text, const std::vector<SequenceReport>& sequences) {
  text += "sequence  prompt  cached  output  finish    time to first token\n";
  for (std::size_t number = 0; number < sequences.size(); ++number) {
    const SequenceReport& sequence = sequences[number];
    text += fmt::format("{:>8}  {:>6}  {:>6}  {:>6}  {:<8}  {:>16.2f} ms\n", number + 1,
                        sequence.prompt_ids.size(), sequence.cached_tokens, sequence.output_ids.size(),
                        sequence.finish_reason, sequence.ttft_ms);
  }
}

}  // namespace

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::ptrdiff_t first_digit = number < 0 ? 1 : 0;
  for (auto place = std::ssize(text) - 3; place > first_digit; place -= 3) {
    text.insert(text.begin() + place, ',');
  }
  return text;
}

std::string text_or_ids(std::string text, std::span<const std::int32_t> ids) {
  if (!text.empty() || ids.empty()) return text;
  std::string line = "ids";
  for (const std::int32_t id : ids) {
    const std::string word = fmt::format(" {}", id);
    if (line.size() + word.size() >= 100) {
      text += line + "\n";
      line = "   ";
    }
    line += word;
  }
  return text + line;
}

std::string heading_of(std::size_t number, std::size_t sequences) {
  return sequences > 1 ? fmt::format("[{}]\n", number + 1) : "";
}

Json json_of(const KvMemoryReport& memory) {
  return {{"bytes_per_token", memory.bytes_per_token},
          {"reserved_bytes", memory.reserved_bytes},
          {"used_bytes", memory.used_bytes},
          {"waste_percent", memory.waste_percent()},
          {"pool_bytes", memory.pool_bytes}};
}

Json json_of(const BlocksReport& blocks) {
  return {{"block_size", blocks.block_size},
          {"total", blocks.total},
          {"free", blocks.free},
          {"cached", blocks.cached},
          {"in_use", blocks.in_use}};
}

Json json_of(const CountersReport& counters) {
  return {{"prefix_hits", counters.prefix_hits},      {"evictions", counters.evictions},
          {"preemptions", counters.preemptions},      {"copies", counters.copies},
          {"swaps_out", counters.swaps_out},          {"swaps_in", counters.swaps_in},
          {"gathered_bytes", counters.gathered_bytes}};
}

std::string to_json(const Report& report) {
  Json json = {
      {"schema", 1},
      {"step", report.step},
      {"model", report.model},
      {"device", report.device},
      {"dtype", report.dtype},
      {"threads", report.threads},
      {"sequences", Json::array()},
      {"timing", json_of(report.timing)},
      {"kv_memory", json_of(report.kv_memory)},
      {"kv_rows", {{"computed", report.kv_rows.computed}, {"recomputed", report.kv_rows.recomputed}}},
      {"blocks", json_of(report.blocks)},
      {"counters", json_of(report.counters)}};
  for (const SequenceReport& sequence : report.sequences) json["sequences"].push_back(json_of(sequence));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_text(const Report& report, bool texts_already_shown) {
  std::string text;
  for (std::size_t number = 0; !texts_already_shown && number < report.sequences.size(); ++number) {
    const SequenceReport& sequence = report.sequences[number];
    if (!sequence.error.empty() && sequence.output_ids.empty()) continue;  // it has no text
    text += heading_of(number, report.sequences.size());
    text += text_or_ids(sequence.text, sequence.output_ids) + kBelowText;
  }
  const auto line = [&](std::string_view subject, const std::string& what) {
    text += fmt::format("{:<10}{}\n", subject, what);
  };

  line("step", fmt::format("{}, {} {}, {}", report.step, report.device, report.dtype,
                           counted(report.threads, "thread", "threads")));
  line("model", report.model);
  text += "\n";
  append_sequences(text, report.sequences);
  text += "\n";

  const TimingReport& timing = report.timing;
  line("prefill", fmt::format("{} in {:.2f} ms, {}", counted(timing.prefill_tokens, "token", "tokens"),
                              timing.prefill_ms, rate(timing.prefill_tokens_per_s)));
  line("decode",
       fmt::format("{} in {:.2f} ms, {}, {} ms per pass", counted(timing.decode_tokens, "token", "tokens"),
                   timing.decode_ms, rate(timing.decode_tokens_per_s),
                   timing.ms_per_token ? fmt::format("{:.3f}", *timing.ms_per_token) : "-"));

  const KvRowsReport& rows = report.kv_rows;
  const double recomputed =
      rows.computed == 0 ? 0
                         : 100 * static_cast<double>(rows.recomputed) / static_cast<double>(rows.computed);
  line("K/V rows", fmt::format("{} computed per layer, {} of them again ({:.1f}%)", grouped(rows.computed),
                               grouped(rows.recomputed), recomputed));

  const KvMemoryReport& memory = report.kv_memory;
  line("KV memory", fmt::format("{} reserved, {} used, {:.1f}% waste; {} per token",
                                readable_bytes(memory.reserved_bytes), readable_bytes(memory.used_bytes),
                                memory.waste_percent(), readable_bytes(memory.bytes_per_token)));

  const BlocksReport& blocks = report.blocks;
  if (blocks.total > 0) {
    line("blocks",
         fmt::format("{} of {} ({}): {} free, {} cached, {} in use", grouped(blocks.total),
                     counted(blocks.block_size, "token", "tokens"), readable_bytes(memory.pool_bytes),
                     grouped(blocks.free), grouped(blocks.cached), grouped(blocks.in_use)));
    const CountersReport& counters = report.counters;
    line("counters", fmt::format("{}, {}, {}, {}", counted(counters.prefix_hits, "prefix hit", "prefix hits"),
                                 counted(counters.evictions, "eviction", "evictions"),
                                 counted(counters.preemptions, "preemption", "preemptions"),
                                 counted(counters.copies, "copy", "copies")));
    line("swaps", fmt::format("{} out, {} in", grouped(counters.swaps_out), grouped(counters.swaps_in)));
    if (counters.gathered_bytes > 0)
      line("gathered", fmt::format("{} of K and V", readable_bytes(counters.gathered_bytes)));
  }
  return text;
}

}  // namespace kvcache
