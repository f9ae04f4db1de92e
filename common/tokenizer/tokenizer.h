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
  std::int64_t bytes_left_out = 0;  ///< bytes of the text that the vocabulary has no token for
  /// The special token that is there twice: the text begins with it, and the tokenizer adds it to every text.
  std::optional<std::int32_t> doubled;
};

/// Refuses a text whose bytes were all left out, so that there is nothing to compute.
/// @throws InputError that says how many bytes were left out.
void refuse_lost_text(const Encoding& encoding);

/// The tokenizer of a Hugging Face checkpoint: byte-level BPE (GPT-2, Qwen, Llama 3) or SentencePiece-style
/// BPE (Llama 2, TinyLlama). It does not change after loading; const calls may run on several threads.
class Tokenizer {
 public:
  /// Reads `folder`/tokenizer.json.
  /// @throws InputError that names the file and the component, for a missing file, malformed JSON, or a
  /// normalizer, pre-tokenizer, model, post-processor or decoder that is not supported.
  explicit Tokenizer(const std::filesystem::path& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;             ///< stream decoders of the other go on with this one
  Tokenizer& operator=(Tokenizer&&) noexcept;  ///< as above; those of this one must be gone

  /// The tokens of `text` (UTF-8) as Hugging Face's `encode` gives them. Special tokens in the text are
  /// recognised. With `add_special` the post-processor's template adds others, such as a BOS. The time is in
  /// proportion to the text, whatever the file says.
  /// @param stop  ends the work early, from any thread
  /// @throws InputError if `text` is not valid UTF-8 (with the byte offset), if the unknown token is needed
  /// and not in the vocabulary, and if the file asks for much more work or text than a real one.
  /// StoppedByRequest if `stop` has ended the work.
  Encoding encode_text(std::string_view text, bool add_special = true, std::stop_token stop = {}) const;
  /// The ids of `encode_text`.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const {
    return encode_text(text, add_special).ids;
  }

  /// The text of `ids`, without special tokens if `skip_special`. Bytes that form no character become
  /// U+FFFD. Ids that have no token (a padded vocabulary's tail) decode to nothing.
  /// @throws RunError as StreamDecoder
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  /// The most bytes of a text that one token can stand for. A text of more than n times as many bytes has
  /// more than n tokens. None if there is no bound: a file may leave out parts of a text, or make one token
  /// of a run of characters, however long.
  std::optional<std::int64_t> most_bytes_of_a_token() const;

  /// One past the largest id that has a token, added tokens included. Below it there may be ids without one.
  std::int64_t size() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

/// Turns ids into text one at a time, to print them while they are generated. The joined outputs equal
/// `decode` of all ids. No output ends inside a character. Bytes that can no longer become a character appear
/// as U+FFFD at once. Byte tokens like <0xE2> (Llama 2) appear only when a run of them ends, because one bad
/// byte turns the whole run into U+FFFD, as in Hugging Face's library.
class StreamDecoder {
 public:
  /// Decodes a text of `tokenizer`, which must outlive the decoder (it may be moved).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;             ///< goes on where the other was
  StreamDecoder& operator=(StreamDecoder&&) noexcept;  ///< as above

  /// Text that `id` completes; "" while a character is unfinished.
  /// @throws RunError that names tokenizer.json's decoder and the token, if the decoder takes much more work
  /// for the token, or makes much more text of it, than a real one. The text may go on without that token.
  std::string push(std::int32_t id);
  /// Ends the text: U+FFFD for an unfinished character, else "". The next id begins a new text.
  /// @throws RunError as `push`
  std::string finish();

 private:
  const Tokenizer::Impl* tokenizer_;
  bool skip_special_;
  std::unique_ptr<TokenDecoder> decoder_;
};

}  // namespace kvcache
