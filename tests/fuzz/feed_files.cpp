// Stands in for libFuzzer where a target is built without it: feeds the target each file named on the command
// line, and each file of a folder named there, once. This also replays an input that was found elsewhere.
#include <exception>
#include <filesystem>
#include <vector>

#include "tests/fuzz/hold.h"
#include "tests/support/files.h"

int main(int argc, char** argv) try {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int n = 1; n < argc; ++n) {
    if (fs::is_directory(argv[n])) {
      for (const auto& entry : fs::directory_iterator(argv[n])) files.push_back(entry.path());
    } else {
      files.emplace_back(argv[n]);
    }
  }
  if (files.empty()) throw std::runtime_error("there is no input; give files, or folders of them");
  for (const fs::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());
    const std::string bytes = kvcache::read_file(file);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
