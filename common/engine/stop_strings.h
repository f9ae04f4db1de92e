/// @file
/// Ends an output at a stop string. The output comes in pieces of any size; text that may become a stop
/// string is held back until it cannot.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvcache {

/// One output on its way to a client. The stop string that is complete first ends it; of several that are
/// complete at the same place, the longest. The output is the text before that stop string. How the text is
/// cut into pieces changes nothing.
class StopStrings {
 public:
  /// @param stops  not empty, valid UTF-8 like the text, so no character is cut; must outlive this object
  explicit StopStrings(std::span<const std::string> stops) : stops_(stops) {}

  /// Takes more of the output. Returns the text that is certain now; nothing after a stop string.
  std::string push(std::string_view text);
  /// Ends the output. Returns the text that was held back.
  std::string finish();
  /// Whether a stop string has come.
  bool stopped() const { return stopped_; }

 private:
  std::span<const std::string> stops_;
  std::string held_;  // the longest end of the output that begins a stop string
  bool stopped_ = false;
};

}  // namespace kvcache
