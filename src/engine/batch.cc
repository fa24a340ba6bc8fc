#include "engine/batch.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::engine {
namespace {

void require_alike(const Settings& a, const Settings& b) {
  const auto require = [](bool same, const char* name) {
    if (!same) usage_error(field(name), "differs between requests that are to be painted in one batch");
  };
  require(a.height == b.height && a.painted_height == b.painted_height, "height");
  require(a.width == b.width && a.painted_width == b.painted_width, "width");
  require(a.steps == b.steps, "num_inference_steps");
  require(a.scheduler == b.scheduler && a.request.scheduler == b.request.scheduler, "scheduler");
  require(a.max_sequence_length == b.max_sequence_length, "max_sequence_length");
  require(a.request.dtype == b.request.dtype, "dtype");
  require(a.request.device == b.request.device, "device");
  require(a.request.output_type == b.request.output_type, "output_type");
}

}  // namespace

Batch::Batch(std::span<const Settings> requests) {
  TESSERA_CHECK(!requests.empty(), "no requests");
  const auto place_of = [&](const std::string& prompt) {
    const auto found = std::find(prompts.begin(), prompts.end(), prompt);
    const int64_t place = found - prompts.begin();
    if (found == prompts.end()) prompts.push_back(prompt);
    return place;
  };
  for (const Settings& settings : requests) {
    require_alike(requests.front(), settings);
    const Request& request = settings.request;
    pictures.push_back({pictures.empty() ? 0 : count(), settings.pictures()});
    noise.push_back({*request.seed, settings.pictures()});
    const int64_t negative = settings.guided() ? place_of(request.negative_prompt) : -1;
    for (const std::string& prompt : request.prompts)
      guidance.add(place_of(prompt), negative, settings.guidance, request.num_images_per_prompt);
  }
}

}  // namespace tessera::engine
