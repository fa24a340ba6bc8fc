#include "serve/job_json.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/log.h"
#include "engine/effects.h"
#include "engine/request.h"
#include "serve/model_traits.h"

namespace tessera::serve {
namespace {

constexpr std::array<std::string_view, 8> kKindNames = {"flag", "integer", "seed",     "number",
                                                        "text", "texts",   "integers", "numbers"};

// What the server chooses, or accepts in another way.
constexpr std::array<std::string_view, 5> kHiddenFields = {"device", "dtype", "output_type", "image_size",
                                                           "reference_path"};

OrderedJson time_json(const std::optional<WallTime>& time) {
  return time ? OrderedJson(seconds_since_1970(*time)) : OrderedJson();
}

std::string_view group_name(FieldGroup group) {
  switch (group) {
    case FieldGroup::kPrompt:
      return "prompt";
    case FieldGroup::kImage:
      return "image";
    case FieldGroup::kVideo:
      return "video";
    case FieldGroup::kSampling:
      return "sampling";
    case FieldGroup::kMemory:
      return "memory";
    default:
      return "other";
  }
}

double most_of(const FieldInfo& info, const RequestLimits& limits) {
  const std::array<std::pair<std::string_view, int64_t>, 5> bounds = {
      {{"width", limits.pixels},
       {"height", limits.pixels},
       {"num_frames", limits.frames},
       {"num_inference_steps", limits.steps},
       {"num_images_per_prompt", limits.pictures}}};
  const auto found = std::ranges::find(bounds, info.name, [](const auto& each) { return each.first; });
  return found == bounds.end() ? info.most : std::min(info.most, static_cast<double>(found->second));
}

OrderedJson field_json(const FieldInfo& info, const OrderedJson& defaults, double most) {
  OrderedJson json = {{"name", info.name},
                      {"type", kKindNames[static_cast<size_t>(info.kind)]},
                      {"group", group_name(info.group)},
                      {"default", defaults.contains(info.name) ? defaults[info.name] : OrderedJson()}};
  if (std::isfinite(info.least)) json["minimum"] = info.least;
  if (std::isfinite(most)) json["maximum"] = most;
  if (!info.choices.empty()) json["choices"] = info.choices;
  if (!info.unit.empty()) json["unit"] = info.unit;
  json["help"] = info.help;
  return json;
}

// The request that results from giving only a prompt.
OrderedJson defaults_of(const engine::Model& model) {
  engine::Request request;
  request.prompts = {""};
  request.seed = 0;
  const SuppressLog suppress_log;
  OrderedJson defaults = write_fields(engine::request_fields(), engine::resolve(request, model).request);
  defaults.erase("prompt");
  defaults.erase("seed");
  return defaults;
}

}  // namespace

double seconds_since_1970(WallTime time) {
  return static_cast<double>(time.time_since_epoch().count()) / 1000;
}

OrderedJson seconds_json(const engine::Seconds& seconds) {
  return {{"load", seconds.load},     {"encode", seconds.encode}, {"denoise", seconds.denoise},
          {"decode", seconds.decode}, {"write", seconds.write},   {"total", seconds.total}};
}

std::string job_url(const std::string& id) {
  return "/v1/jobs/" + id;
}

std::string result_url(const std::string& id, int64_t index) {
  return fmt::format("/v1/jobs/{}/results/{}", id, index);
}

OrderedJson job_json(const JobView& view) {
  OrderedJson json = {{"id", view.id},
                      {"object", "job"},
                      {"state", name_of(view.state)},
                      {"created", time_json(view.accepted)},
                      {"started", time_json(view.started)},
                      {"ended", time_json(view.ended)},
                      {"expires", time_json(view.expires)}};
  json["seconds"] = view.seconds ? seconds_json(*view.seconds) : OrderedJson();
  json["place"] = nullptr;
  if (view.outlook)
    json["place"] = {{"jobs_ahead", view.outlook->jobs_ahead},
                     {"begins_in", view.outlook->begins_in.count()},
                     {"ends_in", view.outlook->ends_in.count()}};
  json["step"] = view.step;
  json["steps"] = view.steps;
  json["attempts"] = view.attempts;
  json["request"] = write_fields(engine::request_fields(), view.request.request);
  // Clients must not see files of the server.
  for (const char* const name : {"image", "image_size", "reference_path"}) json["request"].erase(name);
  json["seeds"] = view.seeds;
  json["results"] = OrderedJson::array();
  for (const StoredResult& each : view.results) {
    json["results"].push_back({{"url", result_url(view.id, std::ssize(json["results"]))},
                               {"content_type", each.content_type},
                               {"bytes", each.bytes},
                               {"width", view.width},
                               {"height", view.height}});
  }
  json["error"] = nullptr;
  if (view.error) json["error"] = {{"code", view.error->code}, {"message", view.error->message}};
  json["warnings"] = view.warnings;
  json["preview"] =
      view.has_preview && !has_ended(view.state) ? OrderedJson(job_url(view.id) + "/preview") : OrderedJson();
  return json;
}

OrderedJson fields_json(const JobService& service, const RequestLimits& limits) {
  const engine::Model& model = service.model();
  const ModelTraits traits = traits_of(service);
  OrderedJson data = OrderedJson::array();
  const OrderedJson defaults = defaults_of(model);
  const std::string scheduler = engine::scheduler_class({}, model);
  for (const FieldInfo& info : engine::request_fields()) {
    const bool is_hidden = std::ranges::find(kHiddenFields, info.name) != kHiddenFields.end();
    const bool is_fixed = traits.has_own_sampler && info.name.starts_with("scheduler");
    if (is_hidden || is_fixed || !engine::uses_field(model, scheduler, info.name)) continue;
    data.push_back(field_json(info, defaults, most_of(info, limits)));
    if (info.name == "scheduler") data.back()["suggestions"] = samplers_for(traits);
  }
  return {{"object", "list"}, {"model", service.model_name()}, {"data", std::move(data)}};
}

}  // namespace tessera::serve
