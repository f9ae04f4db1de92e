/// @file
/// Completions in OpenAI's form (https://platform.openai.com/docs/api-reference/completions), for clients
/// made for it. A field that would change the text and is not done here is refused. Unknown fields are
/// ignored, since clients send more than any one server knows. The `[DONE]` that ends a stream is sent by
/// generation_server.cpp. Described in docs/serving.md.
#pragma once

#include <string>
#include <string_view>

#include "common/server/generate_request.h"

namespace kvcache {

/// Reads the body of POST /v1/completions.
/// @param id       of the answer
/// @param created  now, in seconds since 1970
/// @throws RequestError that names the field.
AskedGeneration read_completion_request(std::string_view body, const ServedModel& model,
                                        const std::string& id, std::int64_t created);

/// The answer to GET /v1/models/NAME.
nlohmann::ordered_json described_model(const std::string& name, std::int64_t created);
/// The answer to GET /v1/models.
nlohmann::ordered_json list_of_models(const std::string& name, std::int64_t created);

}  // namespace kvcache
