// Feeds: a text to the shipped model's tokenizer.
//
// Holds: InputError for invalid UTF-8 and for nothing else. Decoded ASCII is the text again. Any decoded text
// encodes to the same ids again; its characters may be composed, because the tokenizer normalizes with NFC.
#include "common/base/error.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer(SOURCE_DIR "/common/fairytale");
  const std::string_view text = FuzzInput(data, size).rest();
  const bool is_text = !find_invalid_utf8(text).has_value();
  try {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, /*add_special=*/false);
    hold(is_text, "only UTF-8 is encoded");
    const std::string decoded = tokenizer.decode(ids, /*skip_special=*/false);
    const bool is_ascii = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
    hold(!is_ascii || decoded == text, "ASCII comes back as it was");
    hold(tokenizer.encode(decoded, /*add_special=*/false) == ids, "what comes back has the same ids");
  } catch (const InputError&) {
    hold(!is_text, "all UTF-8 is encoded");
  }
  return 0;
}
