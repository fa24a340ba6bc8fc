#include "serve/model_traits.h"

#include "core/log.h"
#include "engine/effects.h"
#include "samplers/sampler.h"

namespace tessera::serve {

ModelTraits traits_of(const JobService& service) {
  const engine::Model& model = service.model();
  const models::Family& family = *model.family;
  ModelTraits traits = {.name = service.model_name(), .scheduler = {}};
  traits.makes_videos = family.resolve_video != nullptr;
  traits.has_own_sampler = family.has_own_sampler();
  traits.scheduler = model.scheduler.string("_class_name", "");
  if (!traits.has_own_sampler) traits.has_flow_sigmas = model.scheduler.boolean("use_flow_sigmas", false);
  traits.takes_pictures = engine::uses_field(model, {}, "image");
  traits.takes_clip_skip = engine::uses_field(model, {}, "clip_skip");
  if (traits.makes_videos) {
    const SuppressLog suppress_log;
    engine::Request request;
    request.prompts = {""};
    const VideoRequest video = engine::resolve(request, model).request.video;
    traits.fps = video.fps.value_or(traits.fps);
    traits.frame_interval = video.frame_interval.value_or(1);
  }
  return traits;
}

std::vector<std::string> samplers_for(const ModelTraits& model) {
  std::vector<std::string> names;
  if (model.has_own_sampler) return names;
  const bool is_flow = model.scheduler.starts_with("FlowMatch"), is_edm = model.scheduler.starts_with("EDM");
  for (const samplers::SamplerName& each : samplers::known_samplers()) {
    const std::string& name = each.short_name;
    if (name.starts_with("flow-") == is_flow && name.starts_with("edm-") == is_edm) names.push_back(name);
  }
  return names;
}

}  // namespace tessera::serve
