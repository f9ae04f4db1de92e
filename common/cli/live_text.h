/// @file
/// Shows the texts of a run on a terminal while they are generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace kvcache {

/// Writes the texts of several sequences one after the other, although they are generated at the same time.
/// The first text that has not ended is written as it comes; later texts wait until it has ended. In the end
/// the terminal shows what to_text (print.h) writes of the same texts.
class LiveText {
 public:
  /// Writes a piece of text on the terminal.
  using Write = std::function<void(std::string_view)>;

  /// @param tokenizer  must outlive this
  /// @param eos_ids    sorted ids that are left out of a text
  LiveText(const Tokenizer& tokenizer, std::size_t sequences, std::vector<std::int32_t> eos_ids, Write write);

  /// A sequence has one more id. Its text is written from its second id or its end on: before that, other
  /// prompts may still be computed, and their progress (progress.h) needs the line. Where tokenizer.json's
  /// decoder fails, the text ends.
  void push(std::size_t sequence, std::int32_t id);
  /// A sequence has all its ids. Nothing is written of one that has `failed` before its first id.
  void end(std::size_t sequence, bool failed = false);

 private:
  /// A text on its way.
  struct Sequence {
    StreamDecoder decoder;
    std::vector<std::int32_t> ids = {};
    std::string waiting = {};  // decoded, not yet written
    bool has_text = false;
    bool is_ended = false;
    bool has_failed = false;
    bool is_cut = false;  // the decoder has failed
  };

  /// Adds to the text what `decode` gives; a failure of the decoder ends the text.
  template <typename Decode>
  static void add_text(Sequence& text, const Decode& decode);

  /// Writes the waiting text of the sequence whose turn it is, and moves on while sequences have ended.
  void write_waiting();

  std::vector<std::int32_t> eos_ids_;
  Write write_;
  std::vector<Sequence> sequences_;
  std::size_t turn_ = 0;      // the sequence that is being written
  bool has_heading_ = false;  // its heading is written
};

}  // namespace kvcache
