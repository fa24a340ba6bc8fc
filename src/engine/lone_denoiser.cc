#include "engine/lone_denoiser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/error.h"

namespace tessera::engine {
namespace {

bool is_of_xl(const Json& config) {
  return config.value("addition_embed_type", Json()) == Json("text_time");
}

// The families by their pipelines, with what their published models have in other parts. Of several with one
// class of denoiser, the first whose models have such a config is taken.
struct Defaults {
  const char* family;
  bool (*fits)(const Json& config);
  const char* scheduler;  // JSON
  models::LatentScale scale = {};
};
constexpr std::array kDefaults = {
    Defaults{
        "PixArtSigmaPipeline",
        [](const Json& config) { return config.value("use_additional_conditions", Json()) == Json(false); },
        R"({"_class_name": "DPMSolverMultistepScheduler"})"},
    Defaults{"PixArtAlphaPipeline", [](const Json& /*config*/) { return true; },
             R"({"_class_name": "DPMSolverMultistepScheduler"})"},
    Defaults{"StableDiffusionXLPipeline", is_of_xl, R"({"_class_name": "EulerDiscreteScheduler"})"},
    Defaults{"LatentConsistencyModelPipeline",
             [](const Json& config) { return !config.value("time_cond_proj_dim", Json()).is_null(); },
             R"({"_class_name": "LCMScheduler"})"},
    Defaults{"StableDiffusionPipeline", [](const Json& /*config*/) { return true; },
             R"({"_class_name": "PNDMScheduler", "skip_prk_steps": true})"},
    Defaults{"OpenSoraV1_1Pipeline", [](const Json& /*config*/) { return true; },
             R"({"_class_name": "IDDPM"})"},
    Defaults{"OpenSoraPipeline", [](const Json& /*config*/) { return true; }, R"({"_class_name": "RFLOW"})",
             models::LatentScale{.clip = 17, .frames = 4}}};

// transformers lists the class of a model, diffusers names it.
std::string class_of(const JsonConfig& config) {
  const std::string name = config.string("_class_name", "", Null::kDefault);
  if (!name.empty() || !config.has("architectures")) return name;
  const std::vector<std::string> names = config.strings("architectures");
  return names.empty() ? "" : names.front();
}

const models::PipelinePart& denoiser_of(const models::Family& family) {
  const auto found = std::find_if(
      family.parts.begin(), family.parts.end(),
      [](const models::PipelinePart& part) { return part.name == "transformer" || part.name == "unet"; });
  TESSERA_CHECK(found != family.parts.end(), "{} has no denoiser", family.class_name);
  return *found;
}

}  // namespace

Model read_lone_denoiser(const std::filesystem::path& folder) {
  const JsonConfig config = JsonConfig::read(folder / "config.json");
  const std::string name = class_of(config);
  std::vector<std::string> known;
  for (const Defaults& defaults : kDefaults) {
    const models::Family& family = models::find_family(defaults.family, config.where());
    const models::PipelinePart& denoiser = denoiser_of(family);
    for (const std::string& each : denoiser.classes) {
      if (std::find(known.begin(), known.end(), each) == known.end()) known.push_back(each);
    }
    const bool is_of_class =
        std::find(denoiser.classes.begin(), denoiser.classes.end(), name) != denoiser.classes.end();
    if (!is_of_class || !defaults.fits(config.values())) continue;
    Model model;
    model.folder = folder;
    model.family = &family;
    model.parts = {denoiser};
    model.shape = family.read_shape(folder);
    model.scale = defaults.scale;
    model.scale.channels = model.shape.latent_channels;
    model.scheduler = {Json::parse(defaults.scheduler), config.where()};
    return model;
  }
  input_error(config.where(), "is of {}, but a denoiser is of {}; name one, or the folder of a whole model",
              name.empty() ? "no class" : name, fmt::join(known, ", "));
}

}  // namespace tessera::engine
