/// @file
/// The record that the pictures are drawn from (draw.py): memory, times, and the machine they are from, as
/// one JSON object.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "docs/plots/memory_curves.h"
#include "docs/plots/time_curves.h"

namespace kvcache {

/// Where and when times were measured. No name by which a machine could be found.
struct Machine {
  std::string date;       ///< UTC, as in 2026-01-31
  std::string device;     ///< "cpu" or "cuda"
  std::string processor;  ///< that computed: the CPU's or the GPU's name
  int threads = 0;        ///< of the CPU, also those that feed a GPU
  std::string weights;    ///< a shape's name
  std::string dtype;      ///< "f32" or "bf16"
};
/// The machine that this runs on.
Machine this_machine(const Program& program, const TimingPlan& plan);

/// The part that is the same on every machine.
nlohmann::ordered_json memory_json(const MemoryCurves& memory);
/// The whole record. Nothing in it is rounded: what is rounded once here and once more where it is shown can
/// end a digit off.
nlohmann::ordered_json record_json(const Machine& machine, const MemoryCurves& memory,
                                   const TimeCurves& times);

}  // namespace kvcache
