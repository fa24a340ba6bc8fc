// Jobs as the native API describes them.
#pragma once

#include <string>

#include "core/json.h"
#include "serve/admission.h"
#include "serve/job_service.h"

namespace tessera::serve {

OrderedJson job_json(const JobView& view);
// Uses the names in the report of `tessera generate`.
OrderedJson seconds_json(const engine::Seconds& seconds);
std::string job_url(const std::string& id);
std::string result_url(const std::string& id, int64_t index);

// The fields of a request that this model uses and a client may give: name, type, group, default, minimum and
// maximum or choices, unit and help of each. The server's limits replace the engine's where they are tighter,
// and a text field with some well-known values lists them as suggestions.
OrderedJson fields_json(const JobService& service, const RequestLimits& limits);

// Seconds since 1970.
double seconds_since_1970(WallTime time);

}  // namespace tessera::serve
