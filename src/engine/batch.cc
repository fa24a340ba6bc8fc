#include "engine/batch.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::engine {
namespace {

bool is_of_batch(const FieldInfo& info) {
  return info.scope != FieldScope::kPicture;
}

// Returns the value, as it was chosen, of a field that only guided requests use.
std::optional<double> value_of_guidance(const std::string& name, const Settings& settings) {
  if (name == "guidance_rescale") return settings.guidance_rescale;
  if (name == "cfg_normalization") return settings.cfg_normalization;
  if (name == "cfg_truncation") return settings.cfg_truncation;
  return std::nullopt;
}

Json value_of(const Field<Request>& each, const Settings& settings) {
  const auto of_guidance = value_of_guidance(each.name, settings);
  return of_guidance ? Json(*of_guidance) : each.get(settings.request);
}

}  // namespace

std::string batch_key(const Settings& settings) {
  OrderedJson key = OrderedJson::object();
  for (const Field<Request>& each : request_fields()) {
    if (is_of_batch(each)) key[each.name] = value_of(each, settings);
  }
  return key.dump();
}

void require_alike(const Settings& a, const Settings& b) {
  for (const Field<Request>& each : request_fields()) {
    const bool is_of_guided = value_of_guidance(each.name, a).has_value();
    if (!is_of_batch(each) || (is_of_guided && a.guided() != b.guided())) continue;
    if (value_of(each, a) != value_of(each, b))
      usage_error(field(each.name), "differs between the requests of one batch");
  }
}

Batch::Batch(std::span<const Settings> requests) {
  TESSERA_CHECK(!requests.empty(), "no requests");
  const auto place_of = [&](const models::Prompt& prompt) {
    const auto found = std::find(prompts.begin(), prompts.end(), prompt);
    const int64_t place = found - prompts.begin();
    if (found == prompts.end()) prompts.push_back(prompt);
    return place;
  };
  guidance.resize(static_cast<size_t>(requests.front().video.loops));
  const Settings* guided = nullptr;
  for (const Settings& settings : requests) {
    require_alike(requests.front(), settings);
    if (settings.guided()) {
      if (!guided) guided = &settings;
      require_alike(*guided, settings);
      for (Guidance& each : guidance) {
        each.rescale = guided->guidance_rescale;
        each.normalization = guided->cfg_normalization;
        each.truncation = guided->cfg_truncation;
      }
    }
    const Request& request = settings.request;
    guidance_scales.insert(guidance_scales.end(), static_cast<size_t>(settings.pictures()),
                           settings.guidance);
    pictures.push_back({pictures.empty() ? 0 : count(), settings.pictures()});
    noise.push_back({*request.seed, settings.pictures()});
    for (int64_t loop = 0; loop < settings.video.loops; ++loop) {
      for (size_t i = 0; i < request.prompts.size(); ++i) {
        const int64_t negative = settings.guided() ? place_of(settings.negative_prompt(i, loop)) : -1;
        guidance[static_cast<size_t>(loop)].add(place_of(settings.prompt(i, loop)), negative,
                                                settings.branch_scale(), request.num_images_per_prompt);
      }
    }
  }
}

}  // namespace tessera::engine
