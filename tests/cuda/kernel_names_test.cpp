// A profiler lists kernels by name alone. So each name is given once, and says which kernel it is.
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/support/files.h"

namespace kvcache {
namespace {

/// The files of every kernel in `folder`, by the kernel's name.
void find_kernels(const std::filesystem::path& folder, std::multimap<std::string, std::string>& kernels) {
  const std::regex mark("__global__");
  const std::regex kernel(
      R"(__global__\s+(__launch_bounds__\([^)]*\)\s+)?void\s+(__launch_bounds__\([^)]*\)\s+)?(\w+)\()");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string suffix = entry.path().extension();
    if (suffix != ".cu" && suffix != ".cuh") continue;
    const std::string text = read_file(entry.path());
    std::ptrdiff_t found = 0;
    for (std::sregex_iterator match(text.begin(), text.end(), kernel), end; match != end; ++match, ++found)
      kernels.emplace((*match)[3], entry.path());
    EXPECT_EQ(found, std::distance(std::sregex_iterator(text.begin(), text.end(), mark), {}))
        << "a kernel of another form in " << entry.path();
  }
}

TEST(KernelNames, AreGivenOnceAndSayMoreThanOneWord) {
  std::multimap<std::string, std::string> kernels;
  for (const char* folder :
       {"common", "step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"})
    find_kernels(std::filesystem::path(SOURCE_DIR) / folder, kernels);
  EXPECT_GT(kernels.size(), 20U);
  for (const auto& [name, file] : kernels) {
    EXPECT_EQ(kernels.count(name), 1U) << name << " in " << file;
    EXPECT_NE(name.find('_'), std::string::npos)
        << "\"" << name << "\" says neither the file nor the rung, in " << file;
  }
}

}  // namespace
}  // namespace kvcache
