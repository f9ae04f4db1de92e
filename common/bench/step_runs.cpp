/// @file
/// See step_runs.h.
#include "common/bench/step_runs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

double ms_per(const std::string& unit) {
  const std::map<std::string, double> known{{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}};
  const auto found = known.find(unit);
  if (found == known.end()) throw InputError("unknown time unit " + unit);
  return found->second;
}

/// @throws InputError if `object` has no field `name` of type `Value`.
template <typename Value>
Value field(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) throw InputError(name + " is missing");
  try {
    return found->get<Value>();
  } catch (const Json::exception&) {
    throw InputError(fmt::format("{} is {}, which is of another type", name, shown(nlohmann::json(*found))));
  }
}
template <typename Value>
Value field_or(const Json& object, const std::string& name, Value absent) {
  return object.contains(name) ? field<Value>(object, name) : absent;
}

/// @throws InputError if `entry` is no run.
BenchmarkRun run_of(const Json& entry) {
  const auto full_name = field<std::string>(entry, "run_name");
  field<std::string>(entry, "name");  // must be there: rounds are put together by it
  BenchmarkRun run{full_name.substr(0, full_name.find("/iterations:")), 0, {}};
  if (field_or(entry, "error_occurred", false))
    throw InputError(fmt::format("{} failed: {}", run.name, field_or(entry, "error_message", std::string())));
  run.ms = field<double>(entry, "real_time") * ms_per(field<std::string>(entry, "time_unit"));
  if (!(run.ms > 0)) throw InputError(fmt::format("{} took no time", run.name));
  for (const auto& [key, value] : entry.items()) {
    if (value.is_number()) run.counters[key] = value.get<double>();
  }
  return run;
}

/// Model, device, type, threads and processor, as far as the file names them.
/// @throws InputError if one is missing that every step's benchmarks write.
std::string settings_of(const Json& context) {
  const auto text = [&](const char* key) { return field<std::string>(context, key); };
  const std::string threads = text("threads") + (text("threads") == "1" ? " thread" : " threads");
  std::string settings = fmt::format("{}, {} {}, {}", text("model"), text("device"), text("dtype"), threads);
  for (const char* device : {"gpu", "processor"}) {
    if (context.contains(device)) settings += ", " + text(device);
  }
  return settings;
}

/// Date, commit, and the machine's load just before, as far as the file names them.
std::string when_of(const Json& context) {
  std::vector<std::string> known;
  if (context.contains("date")) known.push_back(field<std::string>(context, "date"));
  if (context.contains("commit")) known.push_back("commit " + field<std::string>(context, "commit"));
  const auto load = field_or(context, "load_avg", std::vector<double>());
  if (!load.empty()) known.push_back(fmt::format("load {:.1f} at the start", load[0]));
  return fmt::format("{}", fmt::join(known, ", "));
}

/// @return no runs if the file holds aggregates alone.
/// @throws InputError if `json` is not the output of a step's benchmarks.
StepRuns step_runs_of(const Json& json) {
  if (json.is_discarded()) throw InputError("it is not whole JSON");
  const auto context = field<Json>(json, "context");
  StepRuns step{.step = field<std::string>(context, "step"),
                .settings = settings_of(context),
                .when = when_of(context),
                .gather = field_or(context, "attention", std::string("paged")) == "gather",
                .notes = {},
                .runs = {},
                .json = {{"context", context}, {"benchmarks", Json::array()}}};
  for (const auto& [key, value] : context.items()) {
    if (key.starts_with("note")) step.notes.push_back(field<std::string>(context, key));
  }
  const auto entries = field<std::vector<Json>>(json, "benchmarks");
  if (entries.empty()) throw InputError("no benchmark has run");
  for (const Json& entry : entries) {
    if (field<std::string>(entry, "run_type") != "iteration") continue;
    step.runs.push_back(run_of(entry));
    step.json["benchmarks"].push_back(entry);
  }
  return step;
}

std::set<std::string> names(const StepRuns& step) {
  std::set<std::string> all;
  for (const BenchmarkRun& run : step.runs) all.insert(run.name);
  return all;
}

}  // namespace

StepRuns read_step_runs(const std::filesystem::path& file) {
  std::string text = read_whole_file(file);
  // Google Benchmark writes NaN, which JSON does not have, for the variation of counters that are 0.
  const std::string nan = ": NaN";
  for (std::size_t at = 0; (at = text.find(nan, at)) != std::string::npos;)
    text.replace(at, nan.size(), ": null");
  refuse_deep_nesting(text, file.string());
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    StepRuns step = step_runs_of(json);
    if (!step.runs.empty()) return step;
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("{} is not the --benchmark_out of a step's benchmarks: {}", file.string(), error.what()));
  }
  throw InputError(
      fmt::format("{} holds aggregates alone, and not the time of each repetition; leave out "
                  "--benchmark_report_aggregates_only",
                  file.string()));
}

std::vector<StepRuns> merge_rounds(std::vector<StepRuns> rounds) {
  std::vector<StepRuns> merged;
  for (StepRuns& round : rounds) {
    if (!merged.empty() && round.settings != merged.front().settings) {
      throw InputError(fmt::format("{} ran with {}, and {} with {}; compare runs with the same options",
                                   merged.front().name(), merged.front().settings, round.name(),
                                   round.settings));
    }
    const auto same = std::ranges::find(merged, round.name(), &StepRuns::name);
    if (same == merged.end()) {
      merged.push_back(std::move(round));
      continue;
    }
    if (names(*same) != names(round)) {
      throw InputError(
          fmt::format("the rounds of {} do not have the same benchmarks; give all the same "
                      "--benchmark_filter",
                      round.name()));
    }
    std::ranges::copy(round.runs, std::back_inserter(same->runs));
    for (Json& entry : round.json["benchmarks"]) same->json["benchmarks"].push_back(std::move(entry));
  }
  return merged;
}

Json to_json(const StepRuns& step) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Json>> repetitions;
  for (const Json& entry : step.json.at("benchmarks")) {
    const auto name = entry.at("name").get<std::string>();
    if (repetitions[name].empty()) order.push_back(name);
    repetitions[name].push_back(entry);
  }
  Json json{{"context", step.json.at("context")}, {"benchmarks", Json::array()}};
  for (const std::string& name : order) {
    const std::size_t count = repetitions[name].size();
    for (std::size_t index = 0; index < count; ++index) {
      Json& entry = repetitions[name][index];
      entry["repetitions"] = count;
      entry["repetition_index"] = index;
      json["benchmarks"].push_back(std::move(entry));
    }
  }
  return json;
}

}  // namespace kvcache
