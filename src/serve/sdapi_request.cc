#include "serve/sdapi_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/text.h"
#include "samplers/sampler.h"

namespace tessera::serve {
namespace {

constexpr int kInvalid = 422;
constexpr int64_t kMostSide = 16384, kMostSteps = 1'000'000, kMostLayers = 256;

// A seed is a number or a text; -1, an empty text and null mean a random one.
uint64_t read_seed(ApiFields& fields, uint64_t drawn) {
  const Json* const value = fields.value("seed");
  if (!value) return drawn;
  if (value->is_number_unsigned()) return value->get<uint64_t>();  // as JSON, the largest of them equals -1
  if (*value == -1 || *value == "-1" || *value == "") return drawn;
  if (value->is_number_float()) {
    const auto number = value->get<double>();
    if (std::trunc(number) == number && number >= 0 && number < 0x1p64) return static_cast<uint64_t>(number);
  }
  if (value->is_string()) {
    const auto text = value->get<std::string>();
    uint64_t seed = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return seed;
  }
  fields.expected("seed", fmt::format("an integer from 0 to {}, or -1 for a random one",
                                      std::numeric_limits<uint64_t>::max()));
}

// Whether the value of a field that is not supported is the one with which it does nothing.
bool is_neutral(const Json& value, double neutral) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == neutral || (neutral == 0 && value == -1);
  if (value.is_string()) return value.get<std::string>().empty() || value == "None";
  return value.empty();
}

// Whether an always-on script is switched off, for clients that always name it.
bool is_off(const Json& script) {
  const auto arguments = script.is_object() ? script.find("args") : script.end();
  if (!script.is_object() || arguments == script.end()) return script.empty();
  return arguments->is_array() && std::all_of(arguments->begin(), arguments->end(), [](const Json& each) {
           return each == false || each.is_null();
         });
}

// Refuses whatever would change the picture.
void refuse_missing(ApiFields& fields) {
  for (const char* const name :
       {"subseed_strength", "seed_resize_from_h", "seed_resize_from_w", "s_churn", "s_tmin", "s_tmax",
        "s_min_uncond", "restore_faces", "tiling", "enable_hr", "styles", "script_name", "refiner_checkpoint",
        "firstpass_image", "infotext"}) {
    const Json* const value = fields.value(name);
    if (value && !is_neutral(*value, 0)) fields.refuse(name, "is not supported", "unsupported_value");
  }
  if (const Json* const noise = fields.value("s_noise"); noise && !is_neutral(*noise, 1))
    fields.refuse("s_noise", "is not supported but for 1", "unsupported_value");
  const Json* const scripts = fields.value("alwayson_scripts");
  if (!scripts) return;
  if (!scripts->is_object()) fields.refuse("alwayson_scripts", "must be an object");
  for (const auto& [name, script] : scripts->items()) {
    if (!is_off(script))
      fields.refuse("alwayson_scripts", fmt::format("has no script '{}' here", printable(cut_utf8(name, 60))),
                    "unsupported_value");
  }
}

// Fields that have no effect in AUTOMATIC1111 unless one of those refused above is used, or that determine
// where files go.
void ignore_rest(ApiFields& fields, PictureCall& call) {
  fields.ignore({"subseed",
                 "override_settings_restore_afterwards",
                 "refiner_switch_at",
                 "disable_extra_networks",
                 "comments",
                 "firstphase_width",
                 "firstphase_height",
                 "hr_scale",
                 "hr_upscaler",
                 "hr_second_pass_steps",
                 "hr_resize_x",
                 "hr_resize_y",
                 "hr_checkpoint_name",
                 "hr_sampler_name",
                 "hr_scheduler",
                 "hr_prompt",
                 "hr_negative_prompt",
                 "hr_cfg",
                 "script_args",
                 "do_not_save_samples",
                 "do_not_save_grid",
                 "sampler_index",
                 "url",
                 "auth"});
  call.denoising_strength = fields.number("denoising_strength", 0, 1);
  if (fields.flag("save_images").value_or(false))
    call.warnings.emplace_back("save_images has no effect: pictures are in the answer alone");
  for (const std::string& name : fields.unread())
    call.warnings.push_back(fmt::format("{} is unknown and has no effect", printable(cut_utf8(name, 60))));
}

// Whether a text contains weighted words, as in "(red:1.2)".
bool has_weights(std::string_view text) {
  for (size_t at = text.find(':'); at != std::string_view::npos; at = text.find(':', at + 1)) {
    const size_t end = text.find_first_not_of("0123456789.", at + 1);
    if (end != std::string_view::npos && end > at + 1 && text[end] == ')' &&
        text.substr(0, at).find('(') != std::string_view::npos)
      return true;
  }
  return false;
}

void check_prompt(ApiFields& fields, const std::string& name, const std::string& text, PictureCall& call) {
  for (const std::string_view network : {"<lora:", "<lyco:", "<hypernet:"}) {
    if (text.find(network) != std::string::npos)
      fields.refuse(name, fmt::format("has {}...>: there are no such networks here", network),
                    "unsupported_value");
  }
  if (has_weights(text))
    call.warnings.push_back(fmt::format(
        "weights of words, as in (word:1.2), have no effect in {}: the model reads it as it stands", name));
}

// The web UI's settings for this request only.
void read_settings(ApiFields& fields, const ModelTraits& model, PictureCall& call, JobRequest& job) {
  const Json* const object = fields.value("override_settings");
  if (!object) return;
  if (!object->is_object()) fields.refuse("override_settings", "must be an object");
  ApiFields settings(*object, kInvalid);
  const std::string title = settings.text("sd_model_checkpoint").value_or("");
  if (!is_title(title, model))
    throw ApiError(404, "model_not_found",
                   fmt::format("there is no model '{}'; this server has {}", printable(cut_utf8(title, 60)),
                               title_of(model)));
  const int64_t layers = settings.integer("CLIP_stop_at_last_layers", 1, kMostLayers).value_or(1);
  if (layers > 1 && model.takes_clip_skip) job.request.clip_skip = layers - 1;
  if (layers > 1 && !model.takes_clip_skip)
    call.warnings.emplace_back("CLIP_stop_at_last_layers has no effect: the model has no CLIP");
  const std::string vae = settings.text("sd_vae").value_or("");
  if (!vae.empty() && vae != "Automatic" && vae != "None")
    settings.refuse("sd_vae", "cannot be chosen: the model has one", "unsupported_value");
  if (const auto format = settings.choice("samples_format", {"png", "jpg", "jpeg", "webp"}))
    job.suffix = *format == "jpeg" ? ".jpg" : "." + *format;
  for (const std::string& name : settings.unread())
    call.warnings.push_back(
        fmt::format("{} of override_settings has no effect", printable(cut_utf8(name, 60))));
}

// In AUTOMATIC1111, eta applies to ancestral samplers, which have 1 here too, and to DDIM; others ignore it.
void read_eta(ApiFields& fields, const PictureCall& call, engine::Request& request) {
  const auto eta = fields.number("eta", 0, 1);
  if (!eta || !request.scheduler) return;
  const std::string class_name = samplers::sampler_class(*request.scheduler);
  for (const auto& known : samplers::known_samplers()) {
    if (known.class_name != class_name || known.own_fields.empty()) continue;
    request.eta = *eta;
    return;
  }
  if (*eta != 1 && (call.sampler.sampler.ends_with(" a") || call.sampler.sampler.ends_with("SDE")))
    fields.refuse("eta", fmt::format("is not supported by {} but for 1", call.sampler.sampler),
                  "unsupported_value");
}

void read_sampling(ApiFields& fields, const ModelTraits& model, PictureCall& call, engine::Request& request) {
  auto name = fields.text("sampler_name");
  if (!name || name->empty()) name = fields.text("sampler_index");
  call.sampler = choose_sampler(name, fields.text("scheduler"), model);
  if (!call.sampler.warning.empty()) call.warnings.push_back(call.sampler.warning);
  request.scheduler = call.sampler.scheduler;
  request.scheduler_options = call.sampler.options;
  if (const auto steps = fields.integer("steps", 1, kMostSteps)) request.num_inference_steps = *steps;
  if (const auto scale = fields.number("cfg_scale", 0, 1000)) request.guidance_scale = *scale;
  read_eta(fields, call, request);
}

}  // namespace

bool is_title(const std::string& text, const ModelTraits& model) {
  return text.empty() || text == model.name || text == model.name + ".safetensors" ||
         text.starts_with(model.name + " [") || text.starts_with(model.name + ".safetensors [");
}

std::string title_of(const ModelTraits& model) {
  return model.name;
}

PictureCall read_txt2img(const Json& object, const ModelTraits& model, const ApiOptions& options,
                         uint64_t drawn_seed) {
  if (model.makes_videos)
    throw ApiError(400, "unsupported_operation",
                   fmt::format("the model {} makes videos; POST /v1/videos takes its requests", model.name));
  ApiFields fields(object, kInvalid);
  PictureCall call;
  call.echo = object;
  JobRequest job;
  engine::Request& request = job.request;
  set_prompt(fields, "prompt", request);
  call.prompt = request.prompts.front();
  call.negative_prompt = fields.text("negative_prompt").value_or("");
  check_prompt(fields, "prompt", call.prompt, call);
  check_prompt(fields, "negative_prompt", call.negative_prompt, call);
  if (!call.negative_prompt.empty()) request.negative_prompts = {call.negative_prompt};
  request.width = fields.integer("width", 1, kMostSide);
  request.height = fields.integer("height", 1, kMostSide);
  read_sampling(fields, model, call, request);
  read_settings(fields, model, call, job);
  const uint64_t seed = read_seed(fields, drawn_seed);
  call.batch_size = fields.integer("batch_size", 1, options.max_pictures).value_or(1);
  const int64_t batches = fields.integer("n_iter", 1, options.max_pictures).value_or(1);
  if (call.batch_size * batches > options.max_pictures)
    fields.refuse("n_iter", fmt::format("times batch_size must be at most {}, got {}", options.max_pictures,
                                        call.batch_size * batches));
  call.sends_images = fields.flag("send_images").value_or(true);
  call.task = fields.text("force_task_id").value_or("");
  refuse_missing(fields);
  ignore_rest(fields, call);
  job.api = "sdapi";
  job.is_awaited = true;
  job.is_stored = false;
  for (int64_t i = 0; i < call.batch_size * batches; ++i) {
    call.jobs.push_back(job);
    call.jobs.back().request.seed = seed + static_cast<uint64_t>(i);
  }
  return call;
}

}  // namespace tessera::serve
