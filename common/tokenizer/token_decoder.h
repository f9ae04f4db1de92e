/// @file
/// From tokens back to text. A decoder is a row of steps; tokens go in at one end one at a time and text
/// comes out at the other, never with a part of a character, so that decoding a stream and decoding a whole
/// are the same code. Chapter: step 1.
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

/// Text on its way through the decoder: whole characters that belong to one token. A step that fuses tokens
/// passes on pieces of the one token that the whole text then is.
struct TextPiece {
  std::string text;  ///< UTF-8
  bool ends_token;   ///< whether the token's text ends with it
};

/// The "decoder" of a tokenizer.json and the state of one decoding: a copy of a fresh one starts a text.
class TokenDecoder {
 public:
  /// @throws InputError naming a decoder that is not supported, and for replacements that make one text many
  /// times as long.
  explicit TokenDecoder(const std::optional<JsonNode>& node);

  /// Text that is certain after `token`; the rest of it comes with a later call.
  /// @throws InputError when a replacement takes much more work, or makes more text, than a real one does.
  /// What it was to replace is lost.
  std::string push(std::string_view token);
  /// What is left at the end of the text.
  /// @throws InputError as `push`
  std::string finish();

 private:
  using Pieces = std::vector<TextPiece>;

  // A step takes a piece with `push` and appends what it makes of it; `finish` appends what it still holds.

  /// Replaces a pattern within each token. After a fusing step it can only do so at the end.
  struct Replace {
    std::shared_ptr<const Regex> pattern;
    std::string content;
    std::string token = {};
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Turns runs of tokens like <0xE2> into the text that the bytes form. When they form none as a whole, each
  /// byte becomes U+FFFD, so that a valid run has to be held until its end.
  struct ByteFallback {
    std::string token = {};
    std::string run = {};         ///< bytes so far, while they may still be valid
    std::size_t checked = 0;      ///< bytes of `run` that are whole characters
    bool run_is_invalid = false;  ///< nothing can save the run: bytes are passed on as U+FFFD at once
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
    void push_byte(char byte, Pieces& out);
    void end_run(Pieces& out);
  };
  /// Makes one token of all.
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
    std::size_t held = 0;  ///< contents that may turn out to be the token's last
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Turns the mark for a space into a space; those of the first token were added by the pre-tokenizer.
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
    std::string bytes = {};  ///< the front of a character
    void push(const TextPiece& piece, Pieces& out);
    void finish(Pieces& out);
  };
  /// Puts a space between tokens: what Hugging Face's library does when a file has no decoder.
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
