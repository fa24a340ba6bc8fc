// Finds fields of a request that have no effect on its run.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"

namespace tessera::engine {

// Returns whether this field is used with the model's family and the sampler of class `sampler`.
bool uses_field(const Model& model, const std::string& sampler, const std::string& name);

// Throws Error(kUsage) for a given field that the family or the sampler never uses. The error names the
// field, its value and the families or samplers that have it.
void require_used_fields(const Request& request, const Model& model, const std::string& sampler);

// Clears the fields that were given and have no effect because of the value of another field, or because of
// the model's shape. Returns one warning for each such reason.
std::vector<std::string> drop_without_effect(Request& request, const Model& model);

}  // namespace tessera::engine
