/// @file
/// What a client may ask for, and the form of the answer. There are two forms: this project's own, POST
/// /generate, in this file; and OpenAI's, POST /v1/completions, in openai.h. Described in docs/serving.md.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/config.h"
#include "common/tokenizer/tokenizer.h"

namespace kvcache {

class RequestFields;

/// The model that is served.
struct ServedModel {
  std::string name;                ///< as clients know it
  const ModelConfig* config;       ///< of the model
  const Tokenizer* tokenizer;      ///< nullptr: ids alone
  const KvManager* manager;        ///< only its capacity is asked
  std::int64_t max_sequences = 0;  ///< running at a time
  bool add_special_tokens = true;  ///< for requests that do not say
  std::stop_token stop = {};       ///< requested when the server ends: encoding stops
};

/// One output of a request.
struct GeneratedOutput {
  std::vector<std::int32_t> ids;  ///< with the end-of-sequence id, if it ended the output
  std::string text;               ///< without that id, and without the stop string and what follows it
  std::string finish_reason;      ///< as in GenerationEvent
};

/// News of one sample: one event of the engine, or several joined.
struct AnswerPart {
  std::int64_t sample = 0;                        ///< from 0
  std::vector<std::int32_t> ids = {};             ///< chosen
  std::string text = {};                          ///< as in GenerationEvent
  std::string finish_reason = {};                 ///< as in GenerationEvent
  std::string error = {};                         ///< as in GenerationEvent
  std::optional<GenerationSummary> summary = {};  ///< with the request's last part
};

/// How the answer to one request is written as JSON.
class AnswerForm {
 public:
  /// Keeps fields in the order in which they are written.
  using Json = nlohmann::ordered_json;

  virtual ~AnswerForm() = default;
  /// The answer of a request without a stream.
  virtual Json whole(const std::vector<GeneratedOutput>& outputs, const GenerationSummary& summary) const = 0;
  /// The events of a stream that tell `part`, in order. The last part of a request has a summary.
  virtual std::vector<Json> events(const AnswerPart& part) const = 0;
};

/// What a client asks for, checked against the model.
struct AskedGeneration {
  GenerationRequest request;         ///< as the engine takes it
  bool stream = false;               ///< send tokens as they come
  std::unique_ptr<AnswerForm> form;  ///< of the answer
};

/// Reads the body of POST /generate.
/// @throws RequestError that names the field.
AskedGeneration read_generate_request(std::string_view body, const ServedModel& model);

// For both forms.

/// Reads the fields max_tokens, top_k, n, stop, ignore_eos and the salt into `request`, where they are given.
/// @throws RequestError that names the field.
void read_common_fields(const RequestFields& fields, const ServedModel& model, GenerationRequest& request);
/// Encodes a prompt. The field add_special_tokens says whether the tokenizer adds its own tokens.
/// @param name  of the field that holds the text
/// @throws RequestError that names the field; StoppedByRequest when the server ends.
Encoding encode_prompt(const RequestFields& fields, const std::string& text, const std::string& name,
                       const ServedModel& model);
/// Checks a prompt's length.
/// @throws RequestError with status 400 for a prompt without a token; with 422 for a prompt that is too long
/// for the model or, with the request's salt, for its cache.
void check_prompt_length(const std::vector<std::int32_t>& ids, const std::string& name,
                         const std::string& salt, const ServedModel& model);

}  // namespace kvcache
