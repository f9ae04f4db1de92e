/// @file
/// Turns tokens back into text. A decoder is a row of steps: tokens go in at one end, one at a time, and
/// whole characters come out at the other. So a stream and a whole text are decoded by the same code.
/// Chapter: step 1.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/tokenizer/regex.h"
#include "common/tokenizer/tokenizer_json.h"

namespace kvcache {

/// Text on its way through the decoder: whole characters of one token. After a step that fuses tokens, the
/// whole text is one token, and comes in pieces.
struct TextPiece {
  std::string text;  ///< UTF-8
  bool ends_token;   ///< it is the token's last piece
};

/// The "decoder" of a tokenizer.json, with the state of one text. A copy of an unused decoder starts a text.
class TokenDecoder {
 public:
  /// @throws InputError that names a decoder that is not supported, and for replacements that can make a text
  /// many times as long.
  explicit TokenDecoder(const std::optional<JsonNode>& node);

  /// Text that is certain after `token`; the rest of it comes with a later call.
  /// @throws InputError if a replacement takes much more work, or makes much more text, than a real one. The
  /// text that it was to replace is lost.
  std::string push(std::string_view token);
  /// What is left at the end of the text.
  /// @throws InputError as `push`
  std::string finish();

 private:
  using Pieces = std::vector<TextPiece>;

  // `push` of a step takes a piece and appends its result to `out`. `finish` appends what the step still
  // holds.

  /// Replaces a pattern within each token; after a fusing step, at the end of the text.
  struct Replace {
    std::shared_ptr<const Regex> pattern;
    std::string content;
    std::string token = {};
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Turns a run of tokens like <0xE2> into the text that its bytes form. If the whole run is no text, each
  /// of its bytes becomes U+FFFD. So a run is held until its end.
  struct ByteFallback {
    std::string token = {};
    std::string run = {};         ///< bytes so far, while they may still be valid
    std::size_t checked = 0;      ///< bytes of `run` that are whole characters
    bool run_is_invalid = false;  ///< each byte is passed on as U+FFFD at once
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
    void push_byte(char byte, Pieces& out);
    void end_run(Pieces& out);
  };
  /// Makes one token of all tokens.
  struct Fuse {
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Removes up to `start` times `content` from the front of each token and up to `stop` times from its end.
  struct Strip {
    std::string content;  ///< one character
    std::size_t start, stop;
    std::size_t stripped = 0;  ///< from the front of the current token
    bool in_front = true;
    std::size_t held = 0;  ///< contents that may be the last of the token
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Turns the mark for a space into a space. In the first token the pre-tokenizer has added it.
  struct Metaspace {
    std::string replacement;  ///< one character
    bool drops_first;
    bool in_first_token = true;
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Fuses the bytes that the tokens' characters stand for. Bytes that form no character become U+FFFD.
  struct ByteLevel {
    std::string token = {};
    std::string bytes = {};  ///< of an unfinished character
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Puts a space between tokens, as Hugging Face's library does if a file has no decoder.
  struct SpaceBetween {
    bool before_first = true;
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  using Step = std::variant<Replace, ByteFallback, Fuse, Strip, Metaspace, ByteLevel, SpaceBetween>;

  std::string run(Pieces pieces, bool finishing);
  static Step make_step(const JsonNode& node);
  static Strip make_strip(const JsonNode& node);

  std::vector<Step> steps_;
};

}  // namespace kvcache
