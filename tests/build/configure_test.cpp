// Configuring: the flags and architectures that a user gives are those that are used. Nothing is built.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace kvcache {
namespace {

/// A build folder that was configured with `variables` in the environment and `arguments` on the line.
class Configured {
 public:
  Configured(std::vector<std::string> variables, const std::vector<std::string>& arguments) {
    for (const char* name : {"CXXFLAGS", "CUDAARCHS", "CUDAFLAGS"})
      variables.insert(variables.begin(), {"-u", name});  // of whoever runs the tests
    variables.insert(variables.end(), {CMAKE_PROGRAM, "-G", GENERATOR, "-S", SOURCE_DIR, "-B", folder_.path(),
                                       "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"});
    variables.insert(variables.end(), arguments.begin(), arguments.end());
    result_ = run_program("/usr/bin/env", variables);
    EXPECT_EQ(result_.exit_code, 0) << result_.err;
  }

  const std::string& said() const { return result_.out; }
  /// How a file of the project is compiled.
  std::string command_for(const std::string& file) const {
    for (const nlohmann::json& entry : nlohmann::json::parse(read_file(folder_ / "compile_commands.json"))) {
      if (entry["file"].get<std::string>().ends_with("/" + file)) return entry["command"];
    }
    ADD_FAILURE() << file << " is not compiled";
    return "";
  }

 private:
  TemporaryFolder folder_;
  ProgramResult result_;
};

bool has(const std::string& command, const std::string& flag) {
  return (command + " ").find(" " + flag + " ") != std::string::npos;
}

TEST(Configure, OptimisesAndBuildsForThisProcessorByDefault) {
  const Configured build({}, {"-DCUDA=OFF"});
  for (const char* flag : {"-O2", "-O3", "-DNDEBUG", "-march=native", "-ffp-contract=off"})
    EXPECT_TRUE(has(build.command_for("common/cpu/attention.cpp"), flag)) << flag;
  EXPECT_FALSE(has(build.command_for("common/engine/run.cpp"), "-O3"));
}

TEST(Configure, KeepsTheFlagsThatTheUserGives) {
  const Configured build({"CXXFLAGS=-march=x86-64-v3 -DGIVEN"},
                         {"-DCUDA=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"});
  const std::string command = build.command_for("common/cpu/attention.cpp");
  for (const char* flag : {"-O1", "-march=x86-64-v3", "-DGIVEN", "-ffp-contract=off"})
    EXPECT_TRUE(has(command, flag)) << flag << " in " << command;
  for (const char* flag : {"-O2", "-O3", "-DNDEBUG", "-march=native"})
    EXPECT_FALSE(has(command, flag)) << flag << " in " << command;
}

TEST(Configure, BuildsForTheGpusThatTheUserNames) {
  const Configured from_environment({"CUDAARCHS=86"}, {"-DCUDA=AUTO"});
  if (from_environment.said().find("building --device cuda") == std::string::npos)
    GTEST_SKIP() << "no CUDA Toolkit here";
  EXPECT_NE(from_environment.said().find("--device cuda for 86\n"), std::string::npos)
      << from_environment.said();
  const Configured from_line({"CUDAARCHS=86"}, {"-DCUDA=AUTO", "-DCMAKE_CUDA_ARCHITECTURES=89"});
  EXPECT_NE(from_line.said().find("--device cuda for 89\n"), std::string::npos) << from_line.said();
  const Configured by_itself({}, {"-DCUDA=AUTO"});
  EXPECT_NE(by_itself.said().find("--device cuda for 75-real;80-real;90\n"), std::string::npos)
      << by_itself.said();
}

}  // namespace
}  // namespace kvcache
