/// @file
/// What a client may ask for and in which form it is answered. Two forms are known: this project's own, POST
/// /generate, here; and OpenAI's, POST /v1/completions, in openai.h. Described in docs/serving.md.
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

/// The model that requests are for.
struct ServedModel {
  std::string name;                ///< as clients know it
  const ModelConfig* config;       ///< of the model
  const Tokenizer* tokenizer;      ///< nullptr: there are ids alone
  const KvManager* manager;        ///< asked for its capacity alone
  std::int64_t max_sequences = 0;  ///< running at a time
  bool add_special_tokens = true;  ///< to the texts of requests that do not say
  std::stop_token stop = {};       ///< requested when the server ends: texts are encoded no further
};

/// One output of a request.
struct GeneratedOutput {
  std::vector<std::int32_t> ids;  ///< with the one that ended it, if one did
  std::string text;               ///< without that one and what stood behind a stop string
  std::string finish_reason;      ///< as in GenerationEvent
};

/// What is told of one sample at a time: what an event says, or several one after the other.
struct AnswerPart {
  std::int64_t sample = 0;                        ///< from 0
  std::vector<std::int32_t> ids = {};             ///< chosen
  std::string text = {};                          ///< that became certain
  std::string finish_reason = {};                 ///< as in GenerationEvent
  std::string error = {};                         ///< as in GenerationEvent
  std::optional<GenerationSummary> summary = {};  ///< with the last of the request
};

/// How the answer to one request is written down.
class AnswerForm {
 public:
  /// Fields stay in the order in which they are written.
  using Json = nlohmann::ordered_json;

  virtual ~AnswerForm() = default;
  /// An answer as a whole.
  virtual Json whole(const std::vector<GeneratedOutput>& outputs, const GenerationSummary& summary) const = 0;
  /// The events of a stream that tell a part, in order; the last one comes with a summary.
  virtual std::vector<Json> events(const AnswerPart& part) const = 0;
};

/// What a client asks for, checked against the model.
struct AskedGeneration {
  GenerationRequest request;         ///< as the engine takes it
  bool stream = false;               ///< told token by token
  std::unique_ptr<AnswerForm> form;  ///< of the answer
};

/// Reads the body of POST /generate.
/// @throws RequestError that names the field.
AskedGeneration read_generate_request(std::string_view body, const ServedModel& model);

// What both forms have in common.

/// The fields max_tokens, top_k, n, stop, ignore_eos and the salt, where they are given.
/// @throws RequestError
void read_common_fields(const RequestFields& fields, const ServedModel& model, GenerationRequest& request);
/// The tokens of a text; the field add_special_tokens says whether the tokenizer adds its own.
/// @param name  of the field it stands in
/// @throws RequestError, StoppedByRequest
Encoding encode_prompt(const RequestFields& fields, const std::string& text, const std::string& name,
                       const ServedModel& model);
/// @throws RequestError with status 400 for a prompt without a token, with 422 for one that is too long for
/// the model or, with the request's salt, for its cache.
void check_prompt_length(const std::vector<std::int32_t>& ids, const std::string& name,
                         const std::string& salt, const ServedModel& model);

}  // namespace kvcache
