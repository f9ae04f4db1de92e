/// @file
/// The token ids of a sequence on its way. Samples of one request begin with the same prompt, and a long
/// prompt may wait for long: until a sample gets its first token, it has no ids of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache {

/// A list of token ids that shares its memory with its copies until an id is added to it. Copies belong to
/// one thread.
class TokenIds {
 public:
  /// No ids.
  TokenIds() = default;
  /// These ids.
  TokenIds(std::vector<std::int32_t> ids)
      : ids_(std::make_shared<std::vector<std::int32_t>>(std::move(ids))) {}

  std::size_t size() const { return ids_ ? ids_->size() : 0; }                       ///< how many there are
  const std::int32_t* begin() const { return ids_ ? ids_->data() : nullptr; }        ///< the first
  const std::int32_t* end() const { return begin() + size(); }                       ///< behind the last
  std::int32_t operator[](std::size_t position) const { return begin()[position]; }  ///< of those there are
  std::int32_t back() const { return (*this)[size() - 1]; }  ///< the last of at least one

  /// Adds an id. A list that shares its memory gets its own.
  void push_back(std::int32_t id) { own().push_back(id); }
  /// Puts `id` in the place of the last of at least one. A list that shares its memory gets its own.
  void replace_back(std::int32_t id) { own().back() = id; }

 private:
  std::vector<std::int32_t>& own() {
    if (!ids_ || ids_.use_count() > 1) *this = TokenIds(std::vector<std::int32_t>(begin(), end()));
    return *ids_;
  }

  std::shared_ptr<std::vector<std::int32_t>> ids_;  // none: no ids
};

}  // namespace kvcache
