/// @file
/// See compare.h.
#include "common/cli/compare.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr int kLabelWidth = 24, kColumnWidth = 20;

/// One line of the table: a label, and how to read its figure from a report.
struct Row {
  std::string label;
  std::function<std::string(const json&)> cell;
};

/// The number, or "-" if it was not measured.
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

/// "same" if the field is equal in every sequence of both reports. Equal text means equal bits, because
/// reports print floats exactly.
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

/// A field of a report, and what it must hold.
struct FieldSpec {
  json::json_pointer place;
  std::string_view kind;
  bool (*is_kind)(const json& value);
  bool may_be_absent = false;
};

bool is_text(const json& value) {
  return value.is_string();
}
bool is_number(const json& value) {
  return value.is_number();
}
bool is_number_or_null(const json& value) {
  return value.is_number() || value.is_null();
}
bool is_bytes(const json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
}
/// A count so small that the sum over any list of sequences fits 64 bits.
bool is_count(const json& value) {
  constexpr std::uint64_t most = std::uint64_t{1} << 40U;
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= most;
}
bool is_list(const json& value) {
  return value.is_array();
}

/// The fields that the table reads, apart from those of a sequence.
std::vector<FieldSpec> report_fields() {
  constexpr const char* count = "a whole number";
  constexpr const char* measured = "a number or null";
  return {{json::json_pointer("/step"), "a string", is_text},
          {json::json_pointer("/sequences"), "a list", is_list},
          {json::json_pointer("/timing/ms_per_token"), measured, is_number_or_null},
          {json::json_pointer("/timing/decode_tokens_per_s"), measured, is_number_or_null},
          {json::json_pointer("/kv_rows/computed"), count, is_count},
          {json::json_pointer("/kv_rows/recomputed"), count, is_count},
          {json::json_pointer("/kv_memory/reserved_bytes"), count, is_bytes},
          {json::json_pointer("/kv_memory/used_bytes"), count, is_bytes},
          {json::json_pointer("/kv_memory/waste_percent"), "a number", is_number}};
}

std::vector<FieldSpec> sequence_fields() {
  return {{json::json_pointer("/text"), "a string", is_text},
          {json::json_pointer("/prompt_ids"), "a list", is_list},
          {json::json_pointer("/output_ids"), "a list", is_list, /*may_be_absent=*/true},
          {json::json_pointer("/logits"), "a list", is_list, /*may_be_absent=*/true},
          {json::json_pointer("/cached_tokens"), "a whole number", is_count},
          {json::json_pointer("/ttft_ms"), "a number or null", is_number_or_null}};
}

/// "/kv_rows/computed" as "kv_rows.computed", with `prefix` in front.
std::string name_of(const std::string& prefix, const json::json_pointer& place) {
  std::string name = place.to_string().substr(1);
  std::ranges::replace(name, '/', '.');
  return prefix + name;
}

/// @throws InputError that names the first field of `object` that is missing or of another kind.
void check_fields(const std::string& file, const std::string& prefix, const json& object,
                  const std::vector<FieldSpec>& fields) {
  const auto refuse = [&](const FieldSpec& field, const std::string& fault) {
    throw InputError(fmt::format("{}: {} {}; give the --json output of this project's steps, unchanged", file,
                                 name_of(prefix, field.place), fault));
  };
  for (const FieldSpec& field : fields) {
    if (!object.contains(field.place)) {
      if (!field.may_be_absent) refuse(field, "is missing");
      continue;
    }
    const json& value = object.at(field.place);
    if (!field.is_kind(value)) refuse(field, fmt::format("is {}, not {}", shown(value), field.kind));
  }
}

/// @throws InputError for a file that is no report, or lacks a field that the table reads.
void check_alone(const ReportFile& report) {
  const json& content = report.content;
  if (!content.is_object() || !content.contains("schema") || content.at("schema") != 1) {
    throw InputError(fmt::format(
        "{}: schema is not 1; give the --json output of this project's steps, unchanged", report.name));
  }
  check_fields(report.name, "", content, report_fields());
  const json& sequences = content.at("sequences");
  for (std::size_t s = 0; s < sequences.size(); ++s)
    check_fields(report.name, fmt::format("sequences[{}].", s), sequences[s], sequence_fields());
}

/// @throws InputError if the two have different prompts.
void check_alike(const ReportFile& first, const ReportFile& report) {
  const json &theirs = first.content.at("sequences"), &mine = report.content.at("sequences");
  if (mine.size() != theirs.size()) {
    throw InputError(fmt::format(
        "{} and {} differ in their number of sequences, {} and {}; run every step on the same prompts",
        report.name, first.name, mine.size(), theirs.size()));
  }
  for (std::size_t s = 0; s < theirs.size(); ++s) {
    if (mine[s].at("prompt_ids") != theirs[s].at("prompt_ids")) {
      throw InputError(
          fmt::format("sequences[{}].prompt_ids of {} and {} differ; run every step on the same prompts", s,
                      report.name, first.name));
    }
  }
}

}  // namespace

std::vector<ReportFile> read_reports(std::span<const char* const> names) {
  std::vector<ReportFile> reports;
  for (const char* name : names) {
    const std::string text = read_whole_file(name);
    refuse_deep_nesting(text, name);
    json content = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (content.is_discarded()) {
      throw InputError(
          fmt::format("{} is not JSON; give the --json output of this project's steps, unchanged", name));
    }
    reports.push_back({name, std::move(content)});
  }
  return reports;
}

std::string compare_reports(std::span<const ReportFile> files) {
  for (const ReportFile& file : files) check_alone(file);
  for (const ReportFile& file : files) check_alike(files.front(), file);
  const json& first = files.front().content;

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
  for (const ReportFile& file : files)
    out += fmt::format("{:>{}}", file.content["step"].get<std::string>(), kColumnWidth);
  out += "\n";
  for (const Row& row : rows) {
    out += fmt::format("{:<{}}", row.label, kLabelWidth);
    for (const ReportFile& file : files) out += fmt::format("{:>{}}", row.cell(file.content), kColumnWidth);
    out += "\n";
  }
  return out;
}

}  // namespace kvcache
