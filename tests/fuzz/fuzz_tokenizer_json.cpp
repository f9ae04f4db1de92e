// Feeds: tokenizer.json; after a zero byte, a text.
//
// Holds: InputError, or a tokenizer whose ids are below its size and that decodes the text alike whole and
// token by token.
#include "common/base/error.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/hold.h"
#include "tests/support/files.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  FuzzInput input(data, size);
  write_file(folder / "tokenizer.json", input.until('\0'));
  try {
    const Tokenizer tokenizer(folder.path());
    const std::vector<std::int32_t> ids = tokenizer.encode(input.rest());
    std::string streamed;
    StreamDecoder stream(tokenizer);
    for (const std::int32_t id : ids) {
      hold(id >= 0 && id < tokenizer.size(), "an id is below the size");
      streamed += stream.push(id);
    }
    streamed += stream.finish();
    hold(streamed == tokenizer.decode(ids), "token by token the text is the same");
  } catch (const InputError&) {
  }
  return 0;
}
