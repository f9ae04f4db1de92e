// Feeds: the body of POST /generate and of POST /v1/completions.
//
// Holds: RequestError with status 400 or 422, or a request with ids of the model that fits its cache.
#include "common/model/config.h"
#include "common/server/openai.h"
#include "common/server/request_fields.h"
#include "common/tokenizer/tokenizer.h"
#include "step3_paged/paged_manager.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

namespace {

const char* const model_folder = SOURCE_DIR "/common/fairytale";

template <typename Read>
void check(const ServedModel& model, const Read& read) {
  try {
    const AskedGeneration asked = read();
    hold(asked.form != nullptr, "an answer has a form");
    hold(!asked.request.prompt_ids.empty(), "a prompt has a token");
    hold(static_cast<std::int64_t>(asked.request.prompt_ids.size()) <= model.manager->capacity(),
         "a prompt fits");
    for (const std::int32_t id : asked.request.prompt_ids)
      hold(id >= 0 && id < model.config->vocab_size, "an id is one of the vocabulary");
  } catch (const RequestError& error) {
    hold(error.status == 400 || error.status == 422, "a refusal says whose fault it is");
    hold(std::string_view(error.what()).find('\n') == std::string_view::npos, "a refusal is one line");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ModelConfig config = read_config(model_folder);
  static const Tokenizer tokenizer(model_folder);
  static const PagedManager manager({/*blocks=*/64, /*block_size=*/16, /*bytes_per_token=*/1});
  static const ServedModel model{"fairytale", &config, &tokenizer, &manager, /*max_sequences=*/4};
  const std::string_view body = FuzzInput(data, size).rest();
  check(model, [&] { return read_generate_request(body, model); });
  check(model, [&] { return read_completion_request(body, model, "cmpl-1", 0); });
  return 0;
}
