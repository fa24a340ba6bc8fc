#include <ctime>

#include "core/text.h"
#include "serve/sdapi_request.h"

namespace tessera::serve {
namespace {

// Values that contain separators are quoted.
std::string quoted(const std::string& value) {
  return value.find_first_of(",:\n") == std::string::npos ? value : Json(value).dump();
}

// What all pictures have in common, taken from the first of them.
OrderedJson common_info(const PictureCall& call, const JobView& first, const ModelTraits& model) {
  const engine::Request& request = first.request.request;
  return {
      {"prompt", call.prompt},
      {"negative_prompt", call.negative_prompt},
      {"seed", request.seed.value_or(0)},
      {"subseed", request.seed.value_or(0)},
      {"subseed_strength", 0},
      {"width", first.width},
      {"height", first.height},
      {"sampler_name", call.sampler.sampler},
      {"cfg_scale", request.guidance_scale.value_or(0)},
      {"steps", request.num_inference_steps.value_or(0)},
      {"batch_size", call.batch_size},
      {"restore_faces", false},
      {"face_restoration_model", nullptr},
      {"sd_model_name", model.name},
      {"sd_model_hash", ""},
      {"sd_vae_name", nullptr},
      {"sd_vae_hash", nullptr},
      {"seed_resize_from_w", -1},
      {"seed_resize_from_h", -1},
      {"denoising_strength", call.denoising_strength ? OrderedJson(*call.denoising_strength) : OrderedJson()},
      {"extra_generation_params", {{"Schedule type", call.sampler.schedule}}},
      {"index_of_first_image", 0},
      {"styles", OrderedJson::array()},
      {"job_timestamp", timestamp(first.accepted)},
      {"clip_skip", request.clip_skip.value_or(0) + 1},
      {"is_using_inpainting_conditioning", false},
      {"version", "Tessera " TESSERA_VERSION}};
}

// The request, with the choices that were made for it.
Json echo_of(const PictureCall& call, const JobView& first) {
  const engine::Request& request = first.request.request;
  Json echo = call.echo;
  echo["prompt"] = call.prompt;
  echo["negative_prompt"] = call.negative_prompt;
  echo["seed"] = request.seed.value_or(0);
  echo["steps"] = request.num_inference_steps.value_or(0);
  echo["cfg_scale"] = request.guidance_scale.value_or(0);
  echo["width"] = first.width;
  echo["height"] = first.height;
  echo["sampler_name"] = call.sampler.sampler;
  echo["scheduler"] = call.sampler.schedule;
  echo["batch_size"] = call.batch_size;
  echo["n_iter"] = std::ssize(call.jobs) / call.batch_size;
  return echo;
}

}  // namespace

std::string timestamp(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts = {};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}{:02}{:02}{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string infotext(const PictureCall& call, const JobView& job, const ModelTraits& model) {
  const engine::Request& request = job.request.request;
  std::string text = call.prompt;
  if (!call.negative_prompt.empty()) text += "\nNegative prompt: " + call.negative_prompt;
  text += fmt::format("\nSteps: {}, Sampler: {}, Schedule type: {}, CFG scale: {}, Seed: {}, Size: {}x{}, ",
                      request.num_inference_steps.value_or(0), call.sampler.sampler, call.sampler.schedule,
                      request.guidance_scale.value_or(0), request.seed.value_or(0), job.width, job.height);
  if (request.clip_skip.value_or(0) > 0) text += fmt::format("Clip skip: {}, ", *request.clip_skip + 1);
  return text + fmt::format("Model: {}, Version: Tessera {}", quoted(model.name), TESSERA_VERSION);
}

OrderedJson picture_answer(const PictureCall& call, const std::vector<JobView>& jobs,
                           const std::vector<std::string_view>& files, const ModelTraits& model) {
  std::vector<size_t> told;  // the finished pictures, or all if there are none
  for (size_t i = 0; i < files.size(); ++i) {
    if (!files[i].empty()) told.push_back(i);
  }
  const bool is_any_done = !told.empty();
  for (size_t i = 0; i < jobs.size() && !is_any_done; ++i) told.push_back(i);
  OrderedJson images = OrderedJson::array(), seeds = OrderedJson::array(), infotexts = OrderedJson::array();
  for (const size_t i : told) {
    if (call.sends_images && is_any_done) images.push_back(encode_base64(files[i]));
    seeds.push_back(jobs.at(i).request.request.seed.value_or(0));
    infotexts.push_back(infotext(call, jobs[i], model));
  }
  const JobView& first = jobs.at(told.front());
  OrderedJson info = common_info(call, first, model);
  info["all_prompts"] = std::vector<std::string>(told.size(), call.prompt);
  info["all_negative_prompts"] = std::vector<std::string>(told.size(), call.negative_prompt);
  info["all_seeds"] = seeds;
  info["all_subseeds"] = seeds;
  info["infotexts"] = infotexts;
  std::vector<std::string> warnings = call.warnings;
  for (const JobView& job : jobs) warnings = with_warnings_of(job, std::move(warnings));
  if (!warnings.empty()) info["warnings"] = warnings;
  return {{"images", std::move(images)}, {"parameters", echo_of(call, first)}, {"info", dump(info)}};
}

}  // namespace tessera::serve
