/// @file
/// The texts of a run on a terminal, while they are generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace kvcache {

/// Writes the texts of several sequences, which are generated at the same time, one after the other: the
/// first that has not ended as it comes, and those behind it, as far as they have come, when it has. What is
/// written in the end is what to_text (print.h) writes of the same texts.
class LiveText {
 public:
  /// Takes pieces of text to the terminal.
  using Write = std::function<void(std::string_view)>;

  /// @param tokenizer  must outlive this
  /// @param eos_ids    sorted ids that are no part of a text; empty: all are
  LiveText(const Tokenizer& tokenizer, std::size_t sequences, std::vector<std::int32_t> eos_ids, Write write);

  /// A sequence has a further id. Nothing is written before a sequence has its second or ends: until then
  /// other prompts may still be computed, and their progress (progress.h) needs the line. Where
  /// tokenizer.json's decoder fails, the text ends with what came before.
  void push(std::size_t sequence, std::int32_t id);
  /// A sequence has all its ids. Where it has `failed` before its first one there is nothing to write of it.
  void end(std::size_t sequence, bool failed = false);

 private:
  /// A text on its way.
  struct Sequence {
    StreamDecoder decoder;
    std::vector<std::int32_t> ids = {};
    std::string waiting = {};  // decoded, not written
    bool has_text = false;
    bool is_ended = false;
    bool has_failed = false;
    bool is_cut = false;  // the decoder has failed
  };

  /// Adds what `decode` gives to the text, unless the decoder has failed or fails now.
  template <typename Decode>
  static void add_text(Sequence& text, const Decode& decode);

  /// Writes what is there of the sequence whose turn it is, and of the next ones if it has ended.
  void write_waiting();

  std::vector<std::int32_t> eos_ids_;
  Write write_;
  std::vector<Sequence> sequences_;
  std::size_t turn_ = 0;      // the sequence that is written as it comes
  bool has_heading_ = false;  // it has begun
};

}  // namespace kvcache
