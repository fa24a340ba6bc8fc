#include "engine/lone_denoiser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"

namespace tessera::engine {
namespace {

// transformers lists the class of a model; diffusers gives its name.
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
  for (const models::Family& family : models::families()) {
    const models::PipelinePart& denoiser = denoiser_of(family);
    for (const std::string& each : denoiser.classes) {
      if (std::find(known.begin(), known.end(), each) == known.end()) known.push_back(each);
    }
    const bool is_of_class =
        std::find(denoiser.classes.begin(), denoiser.classes.end(), name) != denoiser.classes.end();
    if (!is_of_class || !family.lone.is_of_family(config.values())) continue;
    Model model;
    model.folder = folder;
    model.family = &family;
    model.parts = {denoiser};
    model.shape = family.read_shape(folder);
    model.scale = family.lone.scale;
    model.scale.channels = model.shape.latent_channels;
    model.scheduler = {Json::parse(family.lone.scheduler), config.where()};
    return model;
  }
  input_error(config.where(), "is of {}, but a denoiser is of {}; name one, or the folder of a whole model",
              name.empty() ? "no class" : name, fmt::join(known, ", "));
}

}  // namespace tessera::engine
