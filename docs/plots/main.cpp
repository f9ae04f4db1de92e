/// @file
/// `plot_data`: measures on this machine and prints the record that docs/plots/draw.py draws. `./steps plots`
/// does both.
#include <CLI/CLI.hpp>
#include <string>

#include "common/base/error.h"
#include "common/cli/options.h"
#include "common/cli/run_main.h"
#include "docs/plots/record.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// @throws InputError for an unknown option or value. @return false if only help was asked for.
bool parse(int argc, char** argv, std::string& device) {
  refuse_values({argv, static_cast<std::size_t>(argc)}, {"-h", "--help"});
  CLI::App app(
      "Prints the curves of docs/plots as one JSON object: memory from the managers of steps 2 to 4, and "
      "times measured on this machine");
  app.add_option("--device", device,
                 "where times are measured: cpu (the shipped model's shape, f32) or cuda (Qwen3-0.6B, bf16)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
  return true;
}

}  // namespace
}  // namespace kvcache

/// Prints a record. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    std::string name = "cpu";
    if (!parse(argc, argv, name)) return 0;
    const DeviceChoice device = name == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu;
    const TimingPlan plan = timing_plan(device);
    Program program = load_for_timing(plan, device);
    const TimeCurves times = time_curves(program, plan);
    fmt::print("{}\n", record_json(this_machine(program, plan), memory_curves(), times).dump());
    return 0;
  });
}
