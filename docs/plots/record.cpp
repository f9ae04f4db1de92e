/// @file
/// See record.h.
#include "docs/plots/record.h"

#include "common/cli/machine.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here

Json json_of(const Spread& spread) {
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
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
          {"waste", curve.waste}};
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
  const std::string device = program.gpu ? "cuda" : "cpu";
  return {today(),
          device,
          processor_name(device),
          program.threads->threads(),
          plan.weights,
          std::string(name_of(program.dtype))};
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
