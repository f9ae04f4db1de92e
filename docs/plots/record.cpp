/// @file
/// See record.h.
#include "docs/plots/record.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>

#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[sizeof "2026-01-31"];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

/// As Linux names it; not every architecture has a name.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU without a name";
}

std::string processor_of([[maybe_unused]] const Program& program) {
#ifdef WITH_CUDA
  if (program.gpu) return program.gpu->name();
#endif
  return cpu_name();
}

/// Four significant digits: times vary by more from run to run.
double rounded(double number) {
  if (number == 0) return 0;
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::abs(number))));
  return std::round(number * scale) / scale;
}

Json json_of(std::vector<double> numbers) {
  for (double& number : numbers) number = rounded(number);
  return numbers;
}

Json json_of(const Spread& spread) {
  return {
      {"median", json_of(spread.median)}, {"least", json_of(spread.least)}, {"most", json_of(spread.most)}};
}

Json json_of(const KvSizes& sizes) {
  return {{"bytes_per_token", sizes.bytes_per_token},
          {"max_seq_len", sizes.max_seq_len},
          {"block_size", sizes.block_size}};
}

Json json_of(const MemoryCurve& curve) {
  return {{"reserved", curve.reserved}, {"used", curve.used}};
}

Json json_of(const GrowthCurves& curves) {
  return {{"sizes", json_of(curves.sizes)},
          {"tokens", curves.tokens},
          {"flat", json_of(curves.flat)},
          {"paged", json_of(curves.paged)}};
}

Json json_of(const TraceCurves& curves) {
  return {{"sizes", json_of(curves.sizes)},      {"requests", curves.requests},
          {"most_at_once", curves.most_at_once}, {"pass", curves.pass},
          {"flat", json_of(curves.flat)},        {"paged", json_of(curves.paged)},
          {"shared", json_of(curves.shared)}};
}

Json json_of(const BudgetCurves& curves) {
  return {{"sizes", json_of(curves.sizes)}, {"budget_bytes", curves.budget_bytes},
          {"length", curves.length},        {"flat", curves.flat},
          {"paged", curves.paged},          {"shared", curves.shared}};
}

Json json_of(const BlockSizeWaste& curve) {
  return {{"sequences", curve.sequences},
          {"tokens", curve.tokens},
          {"block_size", curve.block_size},
          {"waste", json_of(curve.waste)}};
}

Json json_of(const DecodeCurves& curves) {
  return {{"context", curves.context},      {"no_cache", json_of(curves.no_cache)},
          {"flat", json_of(curves.flat)},   {"gather", json_of(curves.gather)},
          {"paged", json_of(curves.paged)}, {"shared", json_of(curves.shared)}};
}

Json json_of(const GenerationCurves& curves) {
  return {{"prompt", curves.prompt},
          {"tokens", curves.tokens},
          {"no_cache", json_of(curves.no_cache)},
          {"flat", json_of(curves.flat)},
          {"paged", json_of(curves.paged)},
          {"shared", json_of(curves.shared)}};
}

Json json_of(const FirstTokenCurves& curves) {
  return {{"own", curves.own},
          {"prefix", curves.prefix},
          {"cached", curves.cached},
          {"cold", json_of(curves.cold)},
          {"warm", json_of(curves.warm)}};
}

Json json_of(const BlockSizeTimes& curves) {
  return {{"sequences", curves.sequences},
          {"context", curves.context},
          {"block_size", curves.block_size},
          {"ms", json_of(curves.ms)},
          {"ratio", json_of(curves.ratio)}};
}

}  // namespace

Machine this_machine(const Program& program, const TimingPlan& plan) {
  return {today(),      program.gpu ? "cuda" : "cpu",       processor_of(program), program.pool->threads(),
          plan.weights, std::string(name_of(program.dtype))};
}

Json memory_json(const MemoryCurves& memory) {
  return {{"growth", json_of(memory.growth)},
          {"trace", json_of(memory.trace)},
          {"budget", json_of(memory.budget)},
          {"block_sizes", json_of(memory.block_sizes)}};
}

Json record_json(const Machine& machine, const MemoryCurves& memory, const TimeCurves& times) {
  return {{"schema", 1},
          {"machine",
           {{"date", machine.date},
            {"device", machine.device},
            {"processor", machine.processor},
            {"threads", machine.threads},
            {"weights", machine.weights},
            {"dtype", machine.dtype}}},
          {"memory", memory_json(memory)},
          {"times",
           {{"decode", json_of(times.decode)},
            {"generation", json_of(times.generation)},
            {"first_token", json_of(times.first_token)},
            {"block_sizes", json_of(times.block_sizes)}}}};
}

}  // namespace kvcache
