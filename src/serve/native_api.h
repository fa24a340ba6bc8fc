// Tessera's own API, in which jobs are sent, followed, fetched and ended.
#pragma once

#include <cstddef>
#include <vector>

#include "serve/admission.h"
#include "serve/http.h"
#include "serve/job_service.h"

namespace tessera::serve {

// POST /v1/jobs takes the fields of a request, `format`, `timeout` in seconds, and pictures as Base64 in
// `image` and `reference`; other routes below /v1/jobs describe a job, stream its events, and return its
// preview and its results. GET /v1/fields lists the fields. `service` must outlive the routes.
std::vector<Route> native_routes(JobService& service, const RequestLimits& limits, size_t body_bytes);

}  // namespace tessera::serve
