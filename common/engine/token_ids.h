/// @file
/// The token ids of a sequence on its way. The samples of one request share one copy of the prompt; a sample
/// gets ids of its own with its first token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvcache {

/// A list of token ids. Copies share its memory until one of them changes. All copies belong to one thread.
class TokenIds {
 public:
  /// No ids.
  TokenIds() = default;
  /// These ids.
  TokenIds(std::vector<std::int32_t> ids)
      : ids_(std::make_shared<std::vector<std::int32_t>>(std::move(ids))) {}

  std::size_t size() const { return ids_ ? ids_->size() : 0; }                       ///< how many there are
  const std::int32_t* begin() const { return ids_ ? ids_->data() : nullptr; }        ///< the first
  const std::int32_t* end() const { return begin() + size(); }                       ///< one past the last
  std::int32_t operator[](std::size_t position) const { return begin()[position]; }  ///< position < size()
  std::int32_t back() const { return (*this)[size() - 1]; }  ///< the last; the list is not empty

  /// Adds an id. A list that shares its memory gets memory of its own first.
  void push_back(std::int32_t id) { own().push_back(id); }
  /// Replaces the last id of a list that is not empty. A list that shares its memory gets memory of its own
  /// first.
  void replace_back(std::int32_t id) { own().back() = id; }

 private:
  std::vector<std::int32_t>& own() {
    if (!ids_ || ids_.use_count() > 1) *this = TokenIds(std::vector<std::int32_t>(begin(), end()));
    return *ids_;
  }

  std::shared_ptr<std::vector<std::int32_t>> ids_;  // nullptr: no ids
};

}  // namespace kvcache
