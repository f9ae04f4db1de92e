// Feeds: config.json; after a zero byte, if there is one, generation_config.json.
//
// Holds: InputError, or sizes that the transformer can work with.
#include "common/base/error.h"
#include "common/model/config.h"
#include "tests/fuzz/hold.h"
#include "tests/support/files.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  FuzzInput input(data, size);
  write_file(folder / "config.json", input.until('\0'));
  std::filesystem::remove(folder / "generation_config.json");
  if (!input.empty()) write_file(folder / "generation_config.json", input.rest());
  try {
    const ModelConfig config = read_config(folder.path());
    hold(config.layers > 0 && config.hidden_size > 0 && config.vocab_size > 0, "sizes are positive");
    hold(config.heads % config.kv_heads == 0, "query heads share K/V heads evenly");
    hold(config.head_dim > 0 && config.head_dim % 2 == 0, "positions can be rotated");
  } catch (const InputError&) {
  }
  return 0;
}
