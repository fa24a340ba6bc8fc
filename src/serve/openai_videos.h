// OpenAI's videos API over a JobService.
#pragma once

#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

// Creates, retrieves, lists and deletes videos, and returns their files. `service` must outlive the routes.
std::vector<Route> openai_video_routes(JobService& service, const ApiOptions& options);

}  // namespace tessera::serve
