// The front of a server: the process that speaks HTTP and has the queue, the journal and the results. It does
// no tensor computation.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/api_request.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/options.h"
#include "serve/service.h"

namespace tessera::serve {

struct FrontOptions {
  ServeOptions serve;
  std::vector<int> listeners;  // listening sockets, which the front takes over
  int control = -1;            // its end of the pair with the supervisor (serve/control.h), likewise
  int64_t restarts = 0;        // the number of earlier fronts of this server
};

// All routes of a front, which docs/openapi.yaml describes. The service and the metrics must outlive them.
std::vector<Route> front_routes(Service& service, Metrics& metrics, const ApiOptions& api);

// Serves until the supervisor asks it to drain and the running jobs have ended, then returns 0. Must be
// called on the only thread of a process, which ends afterwards. Throws Error: kUsage and kInput for errors
// that another start would meet again, such as a journal that cannot be read.
int run_front(const FrontOptions& options);

}  // namespace tessera::serve
