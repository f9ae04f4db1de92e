// An installed tree works on its own: its programs find the shipped model beside them, also after the tree
// has moved.
#include <gtest/gtest.h>

#include "tests/support/run_program.h"

namespace kvcache {
namespace {

TEST(Install, ProgramsFindTheShippedModelInTheInstalledTreeAndAfterItMoved) {
  const TemporaryFolder folder;
  const std::filesystem::path first = folder / "first", moved = folder / "moved";
  const ProgramResult installed =
      run_program(CMAKE_PROGRAM, {"--install", BUILD_DIR, "--prefix", first.string()});
  ASSERT_EQ(installed.exit_code, 0) << installed.err;
  std::filesystem::rename(first, moved);
  for (const char* step : {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    const ProgramResult result = run_program(moved / "bin" / step, {"--tokens", "1", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find((moved / "share").string()), std::string::npos)
        << "the report names the installed model";
  }
}

}  // namespace
}  // namespace kvcache
