// The API of AUTOMATIC1111's web UI (/sdapi/v1, and the parts of /internal that its clients use), over a
// JobService.
#pragma once

#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

// txt2img answers when its pictures are there; /progress, /interrupt and /skip refer to the tasks of the same
// owner. Anything missing here, such as img2img, is refused by name. `service` must outlive the routes.
std::vector<Route> sdapi_routes(JobService& service, const ApiOptions& options);

}  // namespace tessera::serve
