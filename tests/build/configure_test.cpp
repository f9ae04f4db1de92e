// Configuring uses the compiler flags and GPU architectures that a user gives. Nothing is built.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_program.h"

namespace kvcache {
namespace {

/// A build folder that was configured with `variables` in the environment and `arguments` on the line.
class Configured {
 public:
  Configured(std::vector<std::string> variables, const std::vector<std::string>& arguments,
             const std::string& source = SOURCE_DIR, int exit_code = 0) {
    for (const char* name : {"CXXFLAGS", "CUDAARCHS", "CUDAFLAGS"})
      variables.insert(variables.begin(), {"-u", name});  // of whoever runs the tests
    variables.insert(variables.end(), {CMAKE_PROGRAM, "-G", GENERATOR, "-S", source, "-B", folder_.path(),
                                       "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"});
    variables.insert(variables.end(), arguments.begin(), arguments.end());
    result_ = run_program("/usr/bin/env", variables);
    EXPECT_EQ(result_.exit_code, exit_code) << result_.err;
  }

  const std::string& said() const { return result_.out; }
  const std::string& errors() const { return result_.err; }
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
  const Configured build({}, {"-DKVCACHE_CUDA=OFF"});
  for (const char* flag : {"-O2", "-O3", "-DNDEBUG", "-march=native", "-ffp-contract=off"})
    EXPECT_TRUE(has(build.command_for("common/cpu/attention.cpp"), flag)) << flag;
  EXPECT_FALSE(has(build.command_for("common/engine/run.cpp"), "-O3"));
}

TEST(Configure, KeepsTheFlagsThatTheUserGives) {
  const Configured build({"CXXFLAGS=-march=x86-64-v3 -DGIVEN"},
                         {"-DKVCACHE_CUDA=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"});
  const std::string command = build.command_for("common/cpu/attention.cpp");
  for (const char* flag : {"-O1", "-march=x86-64-v3", "-DGIVEN", "-ffp-contract=off"})
    EXPECT_TRUE(has(command, flag)) << flag << " in " << command;
  for (const char* flag : {"-O2", "-O3", "-DNDEBUG", "-march=native"})
    EXPECT_FALSE(has(command, flag)) << flag << " in " << command;
}

TEST(Configure, AProcessorAmongTheFlagsOfTheBuildTypeCounts) {
  for (const auto& [type, variable] : {std::pair("Release", "RELEASE"), std::pair("Debug", "DEBUG")}) {
    const Configured build({}, {"-DKVCACHE_CUDA=OFF", std::string("-DCMAKE_BUILD_TYPE=") + type,
                                std::string("-DCMAKE_CXX_FLAGS_") + variable + "=-O1 -march=x86-64-v2"});
    const std::string command = build.command_for("common/cpu/attention.cpp");
    EXPECT_TRUE(has(command, "-march=x86-64-v2")) << command;
    EXPECT_FALSE(has(command, "-march=native")) << command;
  }
}

TEST(Configure, TheOptionNamesTheProcessor) {
  const Configured build({}, {"-DKVCACHE_CUDA=OFF", "-DKVCACHE_CPU_ARCH=x86-64-v3"});
  EXPECT_TRUE(has(build.command_for("common/cpu/attention.cpp"), "-march=x86-64-v3"));
}

TEST(Configure, NamesWithoutThePrefixAreRefusedAndTheNewOnesAreTold) {
  for (const char* given : {"CUDA=ON", "CPU_ARCH=x86-64-v3"}) {
    const Configured build({}, {std::string("-D") + given}, SOURCE_DIR, 1);
    EXPECT_NE(build.errors().find(std::string("pass -DKVCACHE_") + given), std::string::npos)
        << build.errors();
  }
}

TEST(Configure, AParentProjectMayHaveOptionsOfTheSameNames) {
  const TemporaryFolder parent;
  std::ofstream(parent / "CMakeLists.txt") << "cmake_minimum_required(VERSION 3.25)\nproject(parent CXX)\n"
                                              "set(CPU_ARCH theirs CACHE STRING \"\")\n"
                                              "add_subdirectory(\"" SOURCE_DIR "\" kvcache)\n";
  const Configured build({}, {"-DKVCACHE_CUDA=OFF", "-DCUDA=theirs"}, parent.path());
  EXPECT_TRUE(has(build.command_for("common/cpu/attention.cpp"), "-march=native"));
}

TEST(Configure, BuildsForTheGpusThatTheUserNames) {
  const Configured from_environment({"CUDAARCHS=86"}, {"-DKVCACHE_CUDA=AUTO"});
  if (from_environment.said().find("building --device cuda") == std::string::npos)
    GTEST_SKIP() << "no CUDA Toolkit here";
  EXPECT_NE(from_environment.said().find("--device cuda for 86\n"), std::string::npos)
      << from_environment.said();
  const Configured from_line({"CUDAARCHS=86"}, {"-DKVCACHE_CUDA=AUTO", "-DCMAKE_CUDA_ARCHITECTURES=89"});
  EXPECT_NE(from_line.said().find("--device cuda for 89\n"), std::string::npos) << from_line.said();
  const Configured wrong({"CUDAARCHS=8.6"}, {"-DKVCACHE_CUDA=AUTO"});
  EXPECT_NE(wrong.said().find("compiles nothing for CUDAARCHS=8.6; give compute capabilities as 90"),
            std::string::npos)
      << wrong.said();
  const Configured by_itself({}, {"-DKVCACHE_CUDA=AUTO"});
  EXPECT_NE(by_itself.said().find("--device cuda for 75-real;80-real;90\n"), std::string::npos)
      << by_itself.said();
}

}  // namespace
}  // namespace kvcache
