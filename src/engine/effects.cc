#include "engine/effects.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_given(const Field<Request>& each, const Request& request) {
  static const Request nothing;
  return each.get(request) != each.get(nothing);
}

// Returns how a message names the field; the name of a flag depends on its value.
std::string named(const FieldInfo& info, const Json& value) {
  return value.is_boolean() ? field(info.name, value.get<bool>()) : field(info.name);
}

// Returns the titles of the items that have the field.
template <typename Each, typename Title>
std::vector<std::string> owners(const std::vector<Each>& all, const std::string& name, const Title& title) {
  std::vector<std::string> titles;
  for (const Each& each : all) {
    if (contains(each.own_fields, name)) titles.push_back(title(each));
  }
  return titles;
}

std::vector<std::string> families_with(const std::string& name) {
  return owners(models::families(), name, [](const models::Family& each) { return each.title; });
}

std::vector<std::string> samplers_with(const std::string& name) {
  return owners(samplers::known_samplers(), name,
                [](const samplers::SamplerName& each) { return each.short_name; });
}

bool sampler_uses(const std::string& class_name, const std::string& name) {
  const auto& known = samplers::known_samplers();
  const auto is_it = [&](const auto& each) { return each.class_name == class_name; };
  const auto found = std::find_if(known.begin(), known.end(), is_it);
  return found == known.end() || contains(found->own_fields, name);  // make_sampler() refuses unknown ones
}

// Returns whether an absent negative prompt is replaced by zeros instead of being encoded.
bool takes_zeros(const Model& model) {
  if (model.parts.size() == 1) return true;  // a denoiser alone has no model_index.json
  const JsonConfig index = read_model_index(model.folder);
  return index.boolean("force_zeros_for_empty_prompt", true);
}

std::string why_distilled(const Request& /*request*/, const Model& /*model*/) {
  return "the model is distilled to run without guidance";
}

// If the condition holds, `fields` do not have an effect.
struct Condition {
  bool (*holds)(const Request&, const Model&);
  std::string (*reason)(const Request&, const Model&);
  std::vector<std::string> fields;
};

const std::vector<Condition>& conditions() {
  // Both branches of guidance use these. The first condition that holds gives the reason.
  static const std::vector<std::string> of_guidance = {
      "negative_prompt", "negative_prompt_2", "guidance_rescale", "cfg_normalization", "cfg_truncation"};
  static const std::vector<Condition> all = {
      {.holds =
           [](const Request& request, const Model& model) {
             return model.is_distilled && request.guidance_scale > model.family->unguided_scale;
           },
       .reason = why_distilled,
       .fields = {"guidance_scale"}},
      {.holds = [](const Request&, const Model& model) { return model.is_distilled; },
       .reason = why_distilled,
       .fields = of_guidance},
      {.holds = [](const Request&, const Model& model) { return model.shape.takes_guidance_scale; },
       .reason =
           [](const Request&, const Model&) {
             return fmt::format("the model takes {} as an input and has no negative branch",
                                field("guidance_scale"));
           },
       .fields = of_guidance},
      {.holds =
           [](const Request& request, const Model& model) {
             const double unguided = model.family->unguided_scale;
             return request.guidance_scale.value_or(unguided + 1) <= unguided;
           },
       .reason =
           [](const Request& request, const Model& model) {
             return fmt::format("{} is {}, and there is guidance only above {}", field("guidance_scale"),
                                *request.guidance_scale, model.family->unguided_scale);
           },
       .fields = of_guidance},
      {.holds = [](const Request& request,
                   const Model&) { return request.output_type == OutputType::kLatent; },
       .reason = [](const Request&,
                    const Model&) { return field("output_type") + " is latent, and nothing is decoded"; },
       .fields = {"vae_tiling", "vae_block_size"}},
      {.holds = [](const Request&, const Model& model) { return !model.has_part("text_encoder"); },
       .reason = [](const Request&, const Model&) { return std::string("the model has one text encoder"); },
       .fields = {"prompt_2", "negative_prompt_2"}},
      {.holds = [](const Request& request,
                   const Model& model) { return request.negative_prompts.empty() && takes_zeros(model); },
       .reason =
           [](const Request&, const Model&) {
             return fmt::format("there is no {}, in whose place the model takes zeros",
                                field("negative_prompt"));
           },
       .fields = {"negative_prompt_2"}},
      {.holds = [](const Request& request, const Model&) { return request.video.loop.value_or(1) == 1; },
       .reason = [](const Request&,
                    const Model&) { return field("loop") + " is 1, and no part continues another"; },
       .fields = {"condition_frame_length", "condition_frame_edit"}}};
  return all;
}

}  // namespace

bool uses_field(const Model& model, const std::string& sampler, const std::string& name) {
  const auto has_it = [&](const auto& each) { return contains(each.own_fields, name); };
  if (std::ranges::any_of(models::families(), has_it)) return has_it(*model.family);
  return std::ranges::none_of(samplers::known_samplers(), has_it) ||
         (!model.family->has_own_sampler() && sampler_uses(sampler, name));
}

void require_used_fields(const Request& request, const Model& model, const std::string& sampler) {
  for (const Field<Request>& each : request_fields()) {
    if (!is_given(each, request) || uses_field(model, sampler, each.name)) continue;
    const std::vector<std::string> families = families_with(each.name);
    const Json value = each.get(request);
    usage_error(named(each, value), "{} does not support it, got {}; leave it out (it is an option of {})",
                families.empty() ? sampler : model.family->title, value.dump(),
                fmt::join(families.empty() ? samplers_with(each.name) : families, ", "));
  }
}

std::vector<std::string> drop_without_effect(Request& request, const Model& model) {
  std::vector<std::string> warnings;
  for (const Condition& condition : conditions()) {
    std::vector<const Field<Request>*> given;
    for (const Field<Request>& each : request_fields()) {
      if (contains(condition.fields, each.name) && is_given(each, request)) given.push_back(&each);
    }
    if (given.empty() || !condition.holds(request, model)) continue;
    std::vector<std::string> dropped;
    for (const Field<Request>* each : given) {
      dropped.push_back(named(*each, each->get(request)));
      each->clear(request);
    }
    warnings.push_back(fmt::format("{} {} no effect: {}", fmt::join(dropped, ", "),
                                   dropped.size() == 1 ? "has" : "have", condition.reason(request, model)));
  }
  return warnings;
}

}  // namespace tessera::engine
