// Feeds: a text to the shipped model's tokenizer.
// Holds: InputError for what is no UTF-8 and for nothing else; encoded and decoded, the text is what it was.
#include "common/error.h"
#include "common/model/tokenizer.h"
#include "common/model/utf8.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer(SOURCE_DIR "/common/fairytale");
  const std::string_view text = FuzzInput(data, size).rest();
  const bool is_text = !find_invalid_utf8(text).has_value();
  try {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, /*add_special=*/false);
    hold(is_text, "only UTF-8 is encoded");
    hold(tokenizer.decode(ids, /*skip_special=*/false) == text, "a text comes back as it was");
  } catch (const InputError&) {
    hold(!is_text, "all UTF-8 is encoded");
  }
  return 0;
}
