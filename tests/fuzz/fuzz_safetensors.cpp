// Feeds: a safetensors file. After an even first byte comes the header, whose length is made right, before 64
// bytes of data. After an odd first byte comes the whole file.
//
// Holds: InputError, or tensors that can be read to their last byte.
#include "common/base/error.h"
#include "common/model/safetensors.h"
#include "tests/fuzz/hold.h"
#include "tests/support/checkpoint_builder.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  FuzzInput input(data, size);
  const bool whole = input.byte() % 2 != 0;
  const std::string bytes(input.rest());
  write_file(folder / "model.safetensors",
             whole ? bytes : test::safetensors_bytes(bytes, std::string(64, 'x')));
  try {
    const SafetensorsFile file(folder / "model.safetensors");
    unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      hold(tensor.bytes >= 0, "a tensor has a size");
      for (std::int64_t n = 0; n < tensor.bytes; ++n) sum += static_cast<unsigned>(tensor.data[n]);
    }
    volatile unsigned read = sum;
    (void)read;
  } catch (const InputError&) {
  }
  return 0;
}
