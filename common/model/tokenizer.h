/// @file
/// Text to token ids and back, from a checkpoint's tokenizer.json. Chapter: step 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// The tokenizer of a Hugging Face checkpoint: byte-level BPE (GPT-2, Qwen, Llama 3) or SentencePiece-style
/// BPE (Llama 2, TinyLlama). Immutable after loading; const calls may run on several threads.
class Tokenizer {
 public:
  /// Reads `folder`/tokenizer.json.
  /// @throws InputError naming the file and the component: a missing file, malformed JSON, or a normalizer,
  /// pre-tokenizer, model, post-processor or decoder that is not implemented here.
  explicit Tokenizer(const std::filesystem::path& folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Token ids of `text` (UTF-8) as Hugging Face's `encode` gives them. Special tokens in the text are
  /// recognised; with `add_special` the post-processor's template adds its own (a BOS, say).
  /// @throws InputError when `text` is not valid UTF-8 (naming the byte offset).
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;

  /// The text of `ids`, without special tokens when `skip_special`. Bytes that form no character become
  /// U+FFFD. Ids that have no token (a padded vocabulary's tail) decode to nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  /// The bytes one id adds to a decoded text before any replacement by U+FFFD ("" for special and unknown ids
  /// when `skip_special`). A piece may be part of a character.
  std::string_view piece(std::int32_t id) const;

  /// Ids with a token, added tokens included: ids in [0, size()) may be produced by `encode`.
  std::int64_t size() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

/// Turns ids into text one at a time for printing as they are generated. The joined outputs equal `decode` of
/// the whole; no output ever ends inside a character.
class StreamDecoder {
 public:
  /// The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer);

  /// Text that `id` completes; "" while a character is unfinished.
  std::string push(std::int32_t id);
  /// What is left at the end: U+FFFD for an unfinished character, else "".
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  ///< bytes of an unfinished character
  bool at_start_ = true;
};

}  // namespace kvcache
