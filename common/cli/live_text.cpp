/// @file
/// See live_text.h.
#include "common/cli/live_text.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/cli/print.h"

namespace kvcache {

LiveText::LiveText(const Tokenizer& tokenizer, std::size_t sequences, std::vector<std::int32_t> eos_ids,
                   Write write)
    : eos_ids_(std::move(eos_ids)), write_(std::move(write)) {
  for (std::size_t n = 0; n < sequences; ++n) sequences_.push_back({StreamDecoder(tokenizer)});
}

template <typename Decode>
void LiveText::add_text(Sequence& text, const Decode& decode) {
  if (text.is_cut) return;
  try {
    text.waiting += decode();
  } catch (const RunError&) {
    text.is_cut = true;  // the report says why
  }
  text.has_text |= !text.waiting.empty();
}

void LiveText::push(std::size_t sequence, std::int32_t id) {
  Sequence& text = sequences_[sequence];
  text.ids.push_back(id);
  if (!std::ranges::binary_search(eos_ids_, id)) add_text(text, [&] { return text.decoder.push(id); });
  if (text.ids.size() > 1 || sequences_.size() == 1) write_waiting();
}

void LiveText::end(std::size_t sequence, bool failed) {
  Sequence& text = sequences_[sequence];
  add_text(text, [&] { return text.decoder.finish(); });
  if (!text.has_text) text.waiting = text_or_ids("", text.ids);
  text.is_ended = true;
  text.has_failed = failed;
  write_waiting();
}

void LiveText::write_waiting() {
  for (; turn_ < sequences_.size(); ++turn_) {
    Sequence& text = sequences_[turn_];
    if (text.ids.empty() && !text.is_ended) return;  // it has not begun
    if (text.ids.empty() && text.has_failed) continue;
    if (!std::exchange(has_heading_, true)) write_(heading_of(turn_, sequences_.size()));
    write_(std::exchange(text.waiting, ""));
    if (!text.is_ended) return;
    write_(kBelowText);
    has_heading_ = false;
  }
}

}  // namespace kvcache
