// What the operators of a server can ask: whether it works, how busy it is, what it has done.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/service.h"

namespace tessera::serve {

// GET /health answers as long as the server's thread does; /ready answers 200 or 503, depending on whether a
// world takes runs; neither requires a key. GET /metrics is for Prometheus, /v1/status for people. All three
// arguments must outlive the routes.
std::vector<Route> operation_routes(Service& service, Metrics& metrics);

// Counts requests, and writes a line of JSON for each: its time, id, owner, method, route, status and
// seconds. It does not contain paths and bodies, which have ids and prompts. `write` gets the line with its
// end.
std::function<void(const Served&)> request_log(Metrics& metrics, std::function<WallTime()> wall_clock,
                                               std::function<void(std::string_view)> write);

}  // namespace tessera::serve
