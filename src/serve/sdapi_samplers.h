// The samplers and schedules of AUTOMATIC1111's web UI, as this engine has them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

struct SamplerChoice {
  std::optional<std::string> scheduler;  // engine::Request::scheduler; nothing: the model's own
  std::vector<std::string> options;      // engine::Request::scheduler_options
  std::string sampler, schedule;         // their names there
  std::string warning;                   // for the user; may be empty
};

// A name may hold both, as "DPM++ 2M Karras", or be an alias; case does not matter. Without a sampler it is
// the model's. Throws ApiError: 404 for a sampler that is not here, and 422 for a schedule that the sampler
// cannot have, which both name those that there are. Nothing is replaced by something like it.
SamplerChoice choose_sampler(const std::optional<std::string>& sampler,
                             const std::optional<std::string>& schedule, const ModelTraits& model);

OrderedJson sampler_list(const ModelTraits& model);
OrderedJson schedule_list();

}  // namespace tessera::serve
