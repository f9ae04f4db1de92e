/// @file
/// See openai.h. Read `read_completion_request` first.
#include "common/server/openai.h"

#include <limits>
#include <random>
#include <utility>

#include "common/base/json_file.h"
#include "common/server/request_fields.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using Json = AnswerForm::Json;

/// "capacity" is told as "length": OpenAI has no word for a full cache.
Json reason_of(const std::string& reason) {
  if (reason.empty()) return nullptr;
  return reason == "capacity" ? "length" : reason;
}

Json usage_of(const GenerationSummary& summary, std::int64_t bytes_left_out) {
  Json usage = {{"prompt_tokens", summary.prompt_tokens},
                {"completion_tokens", summary.generated_tokens},
                {"total_tokens", summary.prompt_tokens + summary.generated_tokens},
                {"prompt_tokens_details", {{"cached_tokens", summary.cached_tokens}}}};
  if (bytes_left_out > 0) usage["bytes_left_out"] = bytes_left_out;  // this project's own, as in /generate
  return usage;
}

Json choice_of(std::int64_t index, const std::string& text, const std::string& reason) {
  return {{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", reason_of(reason)}};
}

class CompletionForm final : public AnswerForm {
 public:
  /// @param bytes_left_out  of the prompt; 0 is not written
  CompletionForm(std::string id, std::int64_t created, std::string model, bool usage_in_stream,
                 std::int64_t bytes_left_out)
      : id_(std::move(id)),
        created_(created),
        model_(std::move(model)),
        usage_in_stream_(usage_in_stream),
        bytes_left_out_(bytes_left_out) {}

  Json whole(const std::vector<GeneratedOutput>& outputs, const GenerationSummary& summary) const override {
    Json answer = frame();
    for (const GeneratedOutput& output : outputs)
      answer["choices"].push_back(
          choice_of(std::ssize(answer["choices"]), output.text, output.finish_reason));
    answer["usage"] = usage_of(summary, bytes_left_out_);
    return answer;
  }

  std::vector<Json> events(const AnswerPart& part) const override {
    std::vector<Json> events;
    if (!part.text.empty() || !part.finish_reason.empty()) {
      events.push_back(frame());
      if (usage_in_stream_) events.back()["usage"] = nullptr;  // the last event has it
      events.back()["choices"].push_back(choice_of(part.sample, part.text, part.finish_reason));
    }
    if (part.summary && usage_in_stream_) {
      events.push_back(frame());
      events.back()["usage"] = usage_of(*part.summary, bytes_left_out_);
    }
    return events;
  }

 private:
  Json frame() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_},
            {"choices", Json::array()}};
  }

  std::string id_;
  std::int64_t created_;
  std::string model_;
  bool usage_in_stream_;
  std::int64_t bytes_left_out_;
};

/// A field that would change the text, or its length, and that is not done here.
struct UndoneField {
  const char* name;
  nlohmann::json neutral = nullptr;  ///< the one value besides null that changes nothing; null: no other
};

/// OpenAI's fields, and the best known ones of other servers, whose clients send them here, too.
const std::vector<UndoneField>& undone_fields() {
  const nlohmann::json none = nlohmann::json::array(), nothing = nlohmann::json::object();
  static const std::vector<UndoneField> fields = {
      // Which tokens are likely.
      {"presence_penalty", 0},
      {"frequency_penalty", 0},
      {"repetition_penalty", 1},
      {"repeat_penalty", 1},
      {"encoder_repetition_penalty", 1},
      {"penalty_alpha", 0},
      {"exponential_decay_length_penalty"},
      {"no_repeat_ngram_size", 0},
      {"dry_multiplier", 0},
      {"logit_bias", nothing},
      {"logits_processors", none},
      {"bad_words", none},
      {"bad_words_ids", none},
      {"banned_strings", none},
      {"banned_tokens", none},
      {"custom_token_bans", ""},
      {"suppress_tokens", none},
      {"force_words_ids", none},
      {"forced_bos_token_id"},
      {"forced_eos_token_id"},
      {"ban_eos_token", false},
      {"allowed_token_ids", none},
      {"allowed_tokens", none},
      {"min_p", 0},
      {"top_a", 0},
      {"typical_p", 1},
      {"tfs_z", 1},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"xtc_probability", 0},
      {"dynatemp_range", 0},
      {"smoothing_factor", 0},
      {"guidance_scale", 1},
      {"mirostat", 0},
      {"mirostat_mode", 0},
      // Which texts are allowed.
      {"response_format", {{"type", "text"}}},
      {"structured_outputs"},
      {"guided_json"},
      {"guided_regex"},
      {"guided_choice"},
      {"guided_grammar"},
      {"guided_decoding"},
      {"structural_tag"},
      {"ebnf"},
      {"json_schema"},
      {"grammar", ""},
      {"regex"},
      {"tools", none},
      {"tool_choice", "none"},
      {"functions", none},
      {"function_call", "none"},
      // Where a text ends, and how many there are.
      {"stop_token_ids", none},
      {"eos_token_id"},
      {"stop_sequences", none},
      {"stop_regex", none},
      {"include_stop_str_in_output", false},
      {"min_tokens", 0},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"max_length"},
      {"max_new_tokens"},
      {"max_output_tokens"},
      {"n_predict"},
      {"num_predict"},
      {"use_beam_search", false},
      {"num_beams", 1},
      {"length_penalty", 1},
      {"early_stopping", false},
      // What the answer holds.
      {"echo", false},
      {"logprobs"},
      {"top_logprobs", 0},
      {"n_probs", 0},
      {"prompt_logprobs"},
      {"suffix", ""},
      {"skip_special_tokens", true},
      // What the prompt is.
      {"truncate_prompt_tokens"},
      {"prompt_embeds"},
      {"messages"},
  };
  return fields;
}

void refuse_what_is_not_done(const RequestFields& fields) {
  for (const auto& [name, neutral] : undone_fields()) {
    const nlohmann::json* const value = fields.find(name);
    if (value == nullptr || (!neutral.is_null() && *value == neutral)) continue;
    const std::string harmless = neutral.is_null() ? "" : shown(neutral) + ", ";
    throw RequestError(400, name,
                       fmt::format("{} is not supported here; it must be {}null or absent", name, harmless));
  }
  const std::int64_t samples = fields.whole_number("n", 1, 1 << 20).value_or(1);
  for (const std::string name : {"best_of", "num_return_sequences"}) {
    if (fields.whole_number(name, 1, 1 << 20).value_or(samples) != samples)
      throw RequestError(400, name, name + " is not supported here; it must be n or absent");
  }
  // top_n_sigma: any number up to 0 turns it off.
  const double most = std::numeric_limits<double>::max();
  if (fields.number("top_n_sigma", -most, most).value_or(0) > 0)
    throw RequestError(400, "top_n_sigma",
                       "top_n_sigma is not supported here; it must be 0, less, null or absent");
}

/// do_sample false means greedy: then the temperature, 1 by default, must be 0.
void check_do_sample(const RequestFields& fields, double temperature) {
  if (!fields.flag("do_sample").value_or(true) && temperature != 0)
    throw RequestError(400, "do_sample",
                       "do_sample is false and the temperature is not 0; give temperature 0");
}

/// Reads the newer name of max_tokens. Given both, they must be equal.
void read_max_completion_tokens(const RequestFields& fields, GenerationRequest& request) {
  const std::string name = "max_completion_tokens";
  const std::optional<std::int64_t> asked =
      fields.whole_number(name, 0, std::numeric_limits<std::int32_t>::max());
  if (!asked) return;
  if (fields.find("max_tokens") != nullptr && request.max_tokens != *asked)
    throw RequestError(400, name,
                       fmt::format("{} is {} and max_tokens is {}; give one of them, or both alike", name,
                                   *asked, request.max_tokens));
  request.max_tokens = *asked;
}

/// The prompt: one text or one list of token ids, or a list with one of them in it.
Encoding prompt_of(const RequestFields& fields, const std::string& salt, const ServedModel& model) {
  const nlohmann::json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw RequestError(400, "prompt", "there is no prompt");
  const bool is_list_of_prompts =
      prompt->is_array() && !prompt->empty() && (prompt->front().is_string() || prompt->front().is_array());
  if (is_list_of_prompts) {
    if (prompt->size() != 1)
      throw RequestError(
          400, "prompt",
          fmt::format("prompt has {} prompts; send each in a request of its own", prompt->size()));
    prompt = &prompt->front();
  }
  Encoding encoding;
  if (prompt->is_string()) {
    encoding = encode_prompt(fields, prompt->get<std::string>(), "prompt", model);
  } else if (prompt->is_array()) {
    encoding.ids = token_ids_of(*prompt, "prompt", model.config->vocab_size);
  } else {
    throw wrong_value("prompt", "a string or a list of token ids", *prompt);
  }
  check_prompt_length(encoding.ids, "prompt", salt, model);
  return encoding;
}

bool wants_usage(const RequestFields& fields) {
  const nlohmann::json* const options = fields.find("stream_options");
  if (options == nullptr) return false;
  if (!options->is_object()) throw wrong_value("stream_options", "an object", *options);
  const auto found = options->find("include_usage");
  if (found == options->end() || found->is_null()) return false;
  if (!found->is_boolean()) throw wrong_value("stream_options.include_usage", "true or false", *found);
  return found->get<bool>();
}

std::uint64_t any_seed() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random();
}

}  // namespace

AskedGeneration read_completion_request(std::string_view body, const ServedModel& model,
                                        const std::string& id, std::int64_t created) {
  const RequestFields fields(body);
  if (model.tokenizer == nullptr)
    throw RequestError(
        400, "",
        "this form needs a tokenizer, and this model has none; POST /generate takes and gives token ids");
  AskedGeneration asked;
  GenerationRequest& request = asked.request;
  request.max_tokens = 16;
  read_common_fields(fields, model, request);
  read_max_completion_tokens(fields, request);
  refuse_what_is_not_done(fields);
  SamplingParams& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, std::numeric_limits<double>::max()).value_or(1);
  check_do_sample(fields, sampling.temperature);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  const std::optional<std::uint64_t> seed = fields.seed("seed");
  sampling.seed = seed ? *seed : any_seed();
  for (const char* name : {"model", "user"})
    fields.text(name);  // must be texts; the model is always the one that is served
  asked.stream = fields.flag("stream").value_or(false);
  const bool usage_in_stream = wants_usage(fields);
  Encoding prompt = prompt_of(fields, request.salt, model);
  request.prompt_ids = std::move(prompt.ids);
  asked.form =
      std::make_unique<CompletionForm>(id, created, model.name, usage_in_stream, prompt.bytes_left_out);
  return asked;
}

Json described_model(const std::string& name, std::int64_t created) {
  return {{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "kv_cache_step_by_step"}};
}

Json list_of_models(const std::string& name, std::int64_t created) {
  return {{"object", "list"}, {"data", Json::array({described_model(name, created)})}};
}

}  // namespace kvcache
