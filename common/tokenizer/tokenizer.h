/// @file
/// Text to token ids and back, from a checkpoint's tokenizer.json. Chapter: step 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

class TokenDecoder;

/// A text as tokens.
struct Encoding {
  std::vector<std::int32_t> ids;    ///< in order
  std::int64_t bytes_left_out = 0;  ///< of the text: the vocabulary has no token for them, nor an unknown one
  /// The special token with which the text begins although the tokenizer adds it in front of every text, so
  /// that it is there twice.
  std::optional<std::int32_t> doubled;
};

/// @throws InputError, saying how many bytes a text had, if all of them were left out: it is not empty, and
/// there is nothing to compute.
void refuse_lost_text(const Encoding& encoding);

/// The tokenizer of a Hugging Face checkpoint: byte-level BPE (GPT-2, Qwen, Llama 3) or SentencePiece-style
/// BPE (Llama 2, TinyLlama). Immutable after loading; const calls may run on several threads.
class Tokenizer {
 public:
  /// Reads `folder`/tokenizer.json.
  /// @throws InputError naming the file and the component: a missing file, malformed JSON, or a normalizer,
  /// pre-tokenizer, model, post-processor or decoder that is not implemented here.
  explicit Tokenizer(const std::filesystem::path& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;             ///< stream decoders of the other go on with this one
  Tokenizer& operator=(Tokenizer&&) noexcept;  ///< as above; those of this one must be gone

  /// The tokens of `text` (UTF-8) as Hugging Face's `encode` gives them. Special tokens in the text are
  /// recognised; with `add_special` the post-processor's template adds its own (a BOS, say). Takes a time in
  /// proportion to the text, whatever the file holds.
  /// @param stop  ends it early, from any thread
  /// @throws InputError when `text` is not valid UTF-8 (naming the byte offset), when the unknown token is
  /// needed and not in the vocabulary, and when the file asks for much more work or text than a real one
  /// does. StoppedByRequest when `stop` says so.
  Encoding encode_text(std::string_view text, bool add_special = true, std::stop_token stop = {}) const;
  /// Its ids alone.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const {
    return encode_text(text, add_special).ids;
  }

  /// The text of `ids`, without special tokens when `skip_special`. Bytes that form no character become
  /// U+FFFD. Ids that have no token (a padded vocabulary's tail) decode to nothing.
  /// @throws RunError as StreamDecoder
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  /// How many bytes of a text one token stands for, at most; so a text of more bytes than that many for each
  /// of n tokens has more than n. None where there is no bound: a file may leave out parts of a text, or make
  /// one token of a run of characters, however long.
  std::optional<std::int64_t> most_bytes_of_a_token() const;

  /// One past the largest id that has a token, added tokens included. Below it there may be ids without one.
  std::int64_t size() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

/// Turns ids into text one at a time for printing as they are generated. The joined outputs equal `decode` of
/// the whole; no output ever ends inside a character, and bytes that can no longer become one appear as
/// U+FFFD at once. Byte tokens like <0xE2> (Llama 2) appear only when a run of them ends, since one bad byte
/// makes U+FFFD of the whole run: so it is in Hugging Face's library, and so here.
class StreamDecoder {
 public:
  /// Decodes a text of `tokenizer`, which must outlive the decoder (it may be moved).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;             ///< goes on where the other was
  StreamDecoder& operator=(StreamDecoder&&) noexcept;  ///< as above

  /// Text that `id` completes; "" while a character is unfinished.
  /// @throws RunError naming tokenizer.json's decoder and the token, when the decoder takes much more work
  /// for it, or makes more text of it, than a real one does. The text may go on without that token.
  std::string push(std::int32_t id);
  /// What is left at the end: U+FFFD for an unfinished character, else "". The next id begins a new text.
  /// @throws RunError as `push`
  std::string finish();

 private:
  const Tokenizer::Impl* tokenizer_;
  bool skip_special_;
  std::unique_ptr<TokenDecoder> decoder_;
};

}  // namespace kvcache
