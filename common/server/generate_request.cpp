/// @file
/// See generate_request.h. Read `read_generate_request` first.
#include "common/server/generate_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/error.h"
#include "common/server/request_fields.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using Json = AnswerForm::Json;

constexpr std::int64_t kLargestCount = std::numeric_limits<std::int32_t>::max();

Json usage_of(const GenerationSummary& summary, std::int64_t bytes_left_out) {
  Json usage = {{"prompt_tokens", summary.prompt_tokens},
                {"cached_tokens", summary.cached_tokens},
                {"generated_tokens", summary.generated_tokens}};
  if (bytes_left_out > 0) usage["bytes_left_out"] = bytes_left_out;
  return usage;
}

Json timings_of(const GenerationSummary& summary) {
  return {
      {"queue_ms", summary.queue_ms}, {"prefill_ms", summary.prefill_ms}, {"decode_ms", summary.decode_ms}};
}

Json json_of(const GeneratedOutput& output) {
  return {{"text", output.text}, {"ids", output.ids}, {"finish_reason", output.finish_reason}};
}

/// The form of POST /generate.
class GenerateForm final : public AnswerForm {
 public:
  /// @param bytes_left_out  of the prompt; 0 is not written
  explicit GenerateForm(std::int64_t bytes_left_out) : bytes_left_out_(bytes_left_out) {}

  /// The first sample stands at the top level, whether or not there are others.
  Json whole(const std::vector<GeneratedOutput>& outputs, const GenerationSummary& summary) const override {
    Json answer = json_of(outputs.front());
    if (outputs.size() > 1) {
      for (const GeneratedOutput& output : outputs) answer["samples"].push_back(json_of(output));
    }
    answer["usage"] = usage_of(summary, bytes_left_out_);
    answer["timings"] = timings_of(summary);
    return answer;
  }

  /// One token is an `id`. Several, joined for a slow client, are `ids`.
  std::vector<Json> events(const AnswerPart& part) const override {
    Json event = {{"sample", part.sample}, {"text", part.text}};
    if (part.ids.size() == 1) event["id"] = part.ids.front();
    if (part.ids.size() > 1) event["ids"] = part.ids;
    if (!part.finish_reason.empty()) event["finish_reason"] = part.finish_reason;
    if (part.summary) {
      event["usage"] = usage_of(*part.summary, bytes_left_out_);
      event["timings"] = timings_of(*part.summary);
    }
    return {event};
  }

 private:
  std::int64_t bytes_left_out_;
};

Encoding prompt_of(const RequestFields& fields, const std::string& salt, const ServedModel& model) {
  const std::optional<std::string> text = fields.text("prompt");
  const nlohmann::json* const list = fields.find("prompt_ids");
  if (text && list != nullptr)
    throw RequestError(400, "prompt_ids", "prompt and prompt_ids exclude each other; give one of them");
  if (!text && list == nullptr)
    throw RequestError(400, "prompt", "there is no prompt; give a text as prompt or token ids as prompt_ids");
  const std::string name = text ? "prompt" : "prompt_ids";
  Encoding prompt;
  if (text) {
    prompt = encode_prompt(fields, *text, name, model);
  } else {
    prompt.ids = token_ids_of(*list, name, model.config->vocab_size);
  }
  check_prompt_length(prompt.ids, name, salt, model);
  return prompt;
}

}  // namespace

void read_common_fields(const RequestFields& fields, const ServedModel& model, GenerationRequest& request) {
  request.max_tokens = fields.whole_number("max_tokens", 0, kLargestCount).value_or(request.max_tokens);
  const std::int64_t top_k = fields.whole_number("top_k", -1, kLargestCount).value_or(0);
  request.sampling.top_k = top_k == -1 ? 0 : top_k;  // 0 and -1 are both off
  request.samples = fields.whole_number("n", 1, model.max_sequences).value_or(1);
  request.ignore_eos = fields.flag("ignore_eos").value_or(false);
  request.salt = fields.salt().value_or("");
  fields.flag("add_special_tokens");  // checked even where the prompt is no text
  request.stop = fields.stop_strings("stop").value_or(std::vector<std::string>());
  if (!request.stop.empty() && model.tokenizer == nullptr)
    throw RequestError(400, "stop", "stop needs a tokenizer, and this model has none");
}

/// Refuses a text that no encoding makes short enough, before the encoding, which takes long.
void check_text_length(const std::string& text, const std::string& name, const ServedModel& model) {
  const std::int64_t tokens = std::min(model.config->max_position_embeddings - 1, model.manager->capacity());
  const std::optional<std::int64_t> bytes_of_a_token = model.tokenizer->most_bytes_of_a_token();
  if (!bytes_of_a_token || std::ssize(text) <= tokens * *bytes_of_a_token) return;
  throw RequestError(
      422, name,
      fmt::format("{} has {} bytes; at most {} tokens fit, and more than {} bytes are always more tokens; "
                  "give a shorter text",
                  name, text.size(), tokens, tokens * *bytes_of_a_token));
}

Encoding encode_prompt(const RequestFields& fields, const std::string& text, const std::string& name,
                       const ServedModel& model) {
  if (model.tokenizer == nullptr)
    throw RequestError(400, name, name + " is a text, and this model has no tokenizer; give token ids");
  check_text_length(text, name, model);
  Encoding encoding;
  try {
    encoding = model.tokenizer->encode_text(
        text, fields.flag("add_special_tokens").value_or(model.add_special_tokens), model.stop);
    refuse_lost_text(encoding);
  } catch (const InputError& error) {
    throw RequestError(400, name, name + ": " + error.what());
  }
  // A tokenizer may have tokens that the model does not have: they were added after its training.
  const std::int64_t vocab_size = model.config->vocab_size;
  for (const std::int32_t id : encoding.ids) {
    if (id >= vocab_size)
      throw RequestError(
          400, name,
          fmt::format("{} has a token with id {}; this model has the ids 0 to {}", name, id, vocab_size - 1));
  }
  return encoding;
}

void check_prompt_length(const std::vector<std::int32_t>& ids, const std::string& name,
                         const std::string& salt, const ServedModel& model) {
  const std::int64_t length = std::ssize(ids), context = model.config->max_position_embeddings;
  if (length == 0) throw RequestError(400, name, name + " has no token; give at least one");
  if (length >= context)
    throw RequestError(422, name,
                       fmt::format("{} has {} tokens and {}; it must leave room for one more", name, length,
                                   model.config->context_sentence()));
  if (const std::int64_t capacity = model.manager->capacity_for(ids, salt); length > capacity)
    throw RequestError(422, name,
                       fmt::format("{} has {} tokens and the cache holds at most {} of such a sequence", name,
                                   length, capacity));
}

AskedGeneration read_generate_request(std::string_view body, const ServedModel& model) {
  const RequestFields fields(body);
  fields.refuse_others({"prompt", "prompt_ids", "max_tokens", "temperature", "top_k", "top_p", "seed", "n",
                        "stop", "ignore_eos", "stream", "add_special_tokens", "cache_salt", "salt"});
  AskedGeneration asked;
  GenerationRequest& request = asked.request;
  read_common_fields(fields, model, request);
  SamplingParams& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, std::numeric_limits<double>::max()).value_or(0);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  sampling.seed = fields.seed("seed").value_or(0);
  asked.stream = fields.flag("stream").value_or(false);
  Encoding prompt = prompt_of(fields, request.salt, model);
  request.prompt_ids = std::move(prompt.ids);
  asked.form = std::make_unique<GenerateForm>(prompt.bytes_left_out);
  return asked;
}

}  // namespace kvcache
