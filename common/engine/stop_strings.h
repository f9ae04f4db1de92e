/// @file
/// Ending an output at a text: the output is read as it comes, in pieces of any size, and what might become a
/// stop string is held back until it cannot.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvcache {

/// One output on its way to a client. The first stop string to be complete ends it, the longest of those that
/// are complete at the same time; what stands before that is the output. How the text is cut into pieces
/// changes nothing.
class StopStrings {
 public:
  /// @param stops  not empty ones, valid UTF-8, as the text is: then nothing is ever cut within a character.
  ///               They must outlive this
  explicit StopStrings(std::span<const std::string> stops) : stops_(stops) {}

  /// Takes more of the output. Returns what is certain now; nothing after a stop string.
  std::string push(std::string_view text);
  /// The output is over: what was held back belongs to it.
  std::string finish();
  /// Whether a stop string has come.
  bool stopped() const { return stopped_; }

 private:
  std::span<const std::string> stops_;
  std::string held_;  // the longest end of the output that a stop string begins with
  bool stopped_ = false;
};

}  // namespace kvcache
