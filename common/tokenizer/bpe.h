/// @file
/// Byte pair encoding: how a word becomes tokens. The word starts as single characters. Of all neighbours
/// that have a merge, the pair whose merge was learned first is joined. This repeats until no pair has a
/// merge. Chapter: step 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/tokenizer/tokenizer_json.h"

namespace kvcache {

/// The token that two neighbouring tokens become. Merges are learned in order. An earlier merge has a lower
/// rank and goes first.
struct Merge {
  std::int32_t rank;    ///< 0 is the first that was learned
  std::int32_t result;  ///< token id
};

/// Merges by their pair of token ids.
class MergeTable {
 public:
  /// A later merge of the same pair replaces the earlier, as it does in Hugging Face's library.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  /// Null when the two do not merge.
  const Merge* find(std::int32_t left, std::int32_t right) const;

 private:
  std::unordered_map<std::uint64_t, Merge> merges_;
};

/// Merges `tokens`, the lowest rank first, and the leftmost of equal ranks. A queue of candidates makes this
/// O(n log n) for n tokens. A search for the best pair after each merge would take O(n^2), and a text without
/// a space is one long word.
/// @param pairs_looked_up if given, is increased by the number of look-ups in the table, at most 6 n
std::vector<std::int32_t> merge_all(const MergeTable& table, const std::vector<std::int32_t>& tokens,
                                    std::int64_t* pairs_looked_up = nullptr);

/// The "model" of a tokenizer.json: vocabulary, merges, and what to do with characters that have no token.
class Bpe {
 public:
  /// @throws InputError for another model than BPE, an option that is not supported, and a vocabulary or
  /// merges that contradict themselves.
  explicit Bpe(const JsonNode& model);

  /// Appends the tokens of `word` (valid UTF-8) to `ids`. A character without a token becomes the unknown
  /// token. If the model names none, the character is left out, as in Hugging Face's library, and appended to
  /// `left_out`.
  /// @throws InputError if the unknown token is needed and not in the vocabulary.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, std::string& left_out) const;

  /// Whether every character has tokens other than the unknown token.
  /// @param of_bytes  words are written in the alphabet of byte_level.h
  bool knows_everything(bool of_bytes) const;

  /// Lookups by std::string_view without a copy.
  struct StringHash : std::hash<std::string_view> {
    using is_transparent = void;  ///< tells a map that it may do so
  };
  /// Token ids by their text.
  using Vocabulary = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;
  /// As tokenizer.json lists it.
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void read_vocabulary(const JsonNode& vocab);
  void read_merges(const JsonNode& merges);
  std::vector<std::int32_t> characters_of(std::string_view word, std::string& left_out) const;
  bool append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const;
  std::int32_t unknown_token(std::string_view character) const;

  std::string place_;  ///< in the file, for messages
  Vocabulary vocabulary_;
  MergeTable merges_;
  std::string unk_token_;  ///< may be missing in the vocabulary as long as no text needs it
  bool has_unk_token_ = false;
  bool fuse_unk_ = false;       ///< neighbouring unknown characters share one unknown token
  bool byte_fallback_ = false;  ///< spell a character without a token as bytes, <0xE2><0x82><0xAC>
  bool ignore_merges_ = false;  ///< a word in the vocabulary is one token, and is not merged
};

}  // namespace kvcache
