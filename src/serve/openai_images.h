// OpenAI's images API and its list of models, over a JobService.
#pragma once

#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

// POST /v1/images/generations and edits, which answer when the pictures are there, or stream them;
// GET /v1/images/{id}/content, for the URLs in answers; GET /v1/models. `service` must outlive the routes.
std::vector<Route> openai_image_routes(JobService& service, const ApiOptions& options);

// Answers 400 with the code unsupported_operation, for an operation that OpenAI has and this server lacks.
// After a 404, clients would think that they have the wrong address.
Handler refusing(std::string why);

}  // namespace tessera::serve
