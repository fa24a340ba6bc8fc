// The samplers and schedules of AUTOMATIC1111's web UI, as this engine provides them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

struct SamplerChoice {
  std::optional<std::string> scheduler;  // engine::Request::scheduler; nothing for the model's own
  std::vector<std::string> options;      // engine::Request::scheduler_options
  std::string sampler, schedule;         // their names in AUTOMATIC1111
  std::string warning;                   // for the user; may be empty
};

// A name may contain both, such as "DPM++ 2M Karras", or be an alias; case does not matter. By default the
// sampler is the model's. Throws ApiError: 404 for an unknown sampler, and 422 for a schedule that the
// sampler cannot have; both messages list the valid ones. Nothing is replaced by something similar.
SamplerChoice choose_sampler(const std::optional<std::string>& sampler,
                             const std::optional<std::string>& schedule, const ModelTraits& model);

OrderedJson sampler_list(const ModelTraits& model);
OrderedJson schedule_list();

}  // namespace tessera::serve
