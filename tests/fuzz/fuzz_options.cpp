// Feeds: the step, then the words of a command line with zero bytes between them.
//
// Holds: InputError of one line, or options within their limits.
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/cli/options.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const auto step = static_cast<Step>(1 + input.byte() % 4);
  std::vector<std::string> words = {"program"};
  while (!input.empty() && words.size() < 32) words.emplace_back(input.until('\0'));
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  try {
    const std::optional<Options> options = parse_options(step, static_cast<int>(words.size()), argv.data());
    if (!options) return 0;
    hold(options->tokens >= 0 && options->threads >= 0 && options->samples >= 1, "counts are counts");
    hold(options->block_size >= 1 && options->host_blocks >= 0, "blocks hold tokens");
    hold(options->port >= 0 && options->port <= 65535, "a port is one");
  } catch (const InputError& error) {
    hold(std::string_view(error.what()).find('\n') == std::string_view::npos, "a refusal is one line");
  }
  return 0;
}
