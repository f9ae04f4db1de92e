/// @file
/// See compare.h.
#include "common/cli/compare.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr int kLabelWidth = 24, kColumnWidth = 20;

/// One line of the table: a label and how to read its figure from a report.
struct Row {
  std::string label;
  std::function<std::string(const json&)> cell;
};

/// "-" for what was not measured.
std::string measured(const json& value, int digits) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}
std::string count(const json& value) {
  return fmt::format("{}", value.get<std::int64_t>());
}

/// Sums a number over the sequences of a report.
std::int64_t over_sequences(const json& report, const char* field) {
  std::int64_t sum = 0;
  for (const json& sequence : report["sequences"]) sum += sequence[field].get<std::int64_t>();
  return sum;
}

/// "same" if the field is equal in every sequence of both reports. Reports print floats so that equal text
/// means equal bits.
std::string agreement(const json& first, const json& report, const char* field) {
  bool present = false;
  for (std::size_t s = 0; s < first["sequences"].size(); ++s) {
    const json& mine = report["sequences"][s];
    const json& theirs = first["sequences"][s];
    if (!mine.contains(field) || !theirs.contains(field)) continue;
    present = true;
    if (mine[field] != theirs[field]) return "DIFFERENT";
  }
  return present ? "same" : "not asked for";
}

void check(const json& first, const json& report) {
  if (!report.is_object() || report.value("schema", 0) != 1) {
    throw InputError("a report is not of schema 1; compare the --json output of this project's steps");
  }
  if (report["sequences"].size() != first["sequences"].size()) {
    throw InputError("the reports have different numbers of sequences; run every step on the same prompts");
  }
  for (std::size_t s = 0; s < first["sequences"].size(); ++s) {
    if (report["sequences"][s]["prompt_ids"] != first["sequences"][s]["prompt_ids"]) {
      throw InputError(fmt::format(
          "sequence {} has different prompts in the reports; run every step on the same ones", s + 1));
    }
  }
}

}  // namespace

std::string compare_reports(std::span<const nlohmann::json> reports) {
  const json& first = reports.front();
  for (const json& report : reports) check(first, report);  // the first too: it may be no report at all

  std::string out;
  for (std::size_t s = 0; s < first["sequences"].size(); ++s) {
    out += fmt::format("[{}]{}\n\n", s + 1, first["sequences"][s]["text"].get<std::string>());
  }
  std::vector<Row> rows;
  for (std::size_t s = 0; s < first["sequences"].size(); ++s) {
    rows.push_back({fmt::format("first token of [{}], ms", s + 1),
                    [s](const json& r) { return measured(r["sequences"][s]["ttft_ms"], 3); }});
  }
  rows.insert(
      rows.end(),
      {
          {"ms per token, each", [](const json& r) { return measured(r["timing"]["ms_per_token"], 3); }},
          {"tokens per second",
           [](const json& r) { return measured(r["timing"]["decode_tokens_per_s"], 1); }},
          {"K/V rows computed", [](const json& r) { return count(r["kv_rows"]["computed"]); }},
          {"  of these again", [](const json& r) { return count(r["kv_rows"]["recomputed"]); }},
          {"K/V bytes reserved", [](const json& r) { return count(r["kv_memory"]["reserved_bytes"]); }},
          {"K/V bytes used", [](const json& r) { return count(r["kv_memory"]["used_bytes"]); }},
          {"waste",
           [](const json& r) {
             return fmt::format("{:.1f}%", r["kv_memory"]["waste_percent"].get<double>());
           }},
          {"cached prompt tokens",
           [](const json& r) { return fmt::format("{}", over_sequences(r, "cached_tokens")); }},
          {"token ids", [&](const json& r) { return agreement(first, r, "output_ids"); }},
          {"logits, every bit", [&](const json& r) { return agreement(first, r, "logits"); }},
      });
  out += std::string(kLabelWidth, ' ');
  for (const json& report : reports)
    out += fmt::format("{:>{}}", report["step"].get<std::string>(), kColumnWidth);
  out += "\n";
  for (const Row& row : rows) {
    out += fmt::format("{:<{}}", row.label, kLabelWidth);
    for (const json& report : reports) out += fmt::format("{:>{}}", row.cell(report), kColumnWidth);
    out += "\n";
  }
  return out;
}

}  // namespace kvcache
