// Feeds: the length of the pieces, a line of stop strings with commas between them, and a text.
//
// Holds: the text in pieces ends where a search of the whole text ends it.
#include <string>
#include <vector>

#include "common/engine/stop_strings.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

namespace {

/// The text before the stop string that is complete first, the longest of those.
std::string by_search(const std::vector<std::string>& stops, std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return std::string(text.substr(0, end - longest));
  }
  return std::string(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, std::min<std::size_t>(size, 2048));
  const std::size_t length = 1 + input.byte() % 8;
  const std::string_view line = input.until('\n');
  FuzzInput words(reinterpret_cast<const std::uint8_t*>(line.data()), line.size());
  std::vector<std::string> stops;
  while (!words.empty() && stops.size() < 4)
    if (const std::string_view word = words.until(','); !word.empty()) stops.emplace_back(word);

  const std::string_view text = input.rest();
  StopStrings streaming(stops);
  std::string told;
  for (std::size_t at = 0; at < text.size(); at += length) told += streaming.push(text.substr(at, length));
  told += streaming.finish();
  const std::string right = by_search(stops, text);
  hold(told == right, "the output ends where the search says");
  hold(streaming.stopped() == (right.size() < text.size()), "an output that is cut was stopped");
  return 0;
}
