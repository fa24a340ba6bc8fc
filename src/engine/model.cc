#include "engine/model.h"

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "samplers/options.h"
#include "weights/checkpoint.h"
#include "weights/denoiser_file.h"
#include "weights/single_file.h"

namespace tessera::engine {
namespace {

void check_variant(const Model& model) {
  if (model.variant.empty()) return;
  if (model.single_file)
    usage_error(field("variant"), "selects files of a folder, but '{}' is one file",
                model.single_file->path().string());
  const auto& parts = model.parts;
  const bool is_there = std::any_of(parts.begin(), parts.end(), [&](const models::PipelinePart& part) {
    return weights::holds_variant(model.folder / part.name, weights::library_named(part.library),
                                  model.variant);
  });
  if (!is_there)
    input_error(model.folder.string(), "{} is '{}', but no component has files of that variant, such as {}",
                field("variant"), model.variant,
                fmt::format("{}/diffusion_pytorch_model.{}.safetensors", "vae", model.variant));
}

JsonConfig read_scheduler(const std::filesystem::path& folder, const JsonConfig& index,
                          const std::string& library) {
  const models::PartClass named = models::class_of(index, "scheduler");
  if (named.library != library)
    index.refuse("scheduler", fmt::format("only classes of {} can run here", library));
  const JsonConfig file = JsonConfig::read(folder / "scheduler" / "scheduler_config.json");
  Json options = file.values();
  options["_class_name"] = named.name;
  return {std::move(options), file.where()};
}

constexpr const char* kSafetyChecker = "safety_checker";
constexpr const char* kIsDistilled = "is_distilled";

// Returns whether the index names a class for the part and its folder exists.
bool has_part(const JsonConfig& index, const std::filesystem::path& folder, const char* name) {
  std::error_code code;
  if (!index.has(name) || !std::filesystem::is_directory(folder / name, code)) return false;
  const Json& part = index.values()[name];
  return part.is_array() && part.size() == 2 && part[1].is_string();
}

// Warns, as diffusers does, about entries of model_index.json that pipelines here do not use.
void warn_of_unknown_keys(const JsonConfig& index, const models::Family& family) {
  static const std::vector<std::string> known = {"scheduler", "requires_safety_checker",
                                                 "force_zeros_for_empty_prompt", "add_watermarker"};
  std::vector<std::string> unknown;
  for (const auto& item : index.values().items()) {
    const std::string& name = item.key();
    const auto is_name = [&](const models::PipelinePart& part) { return part.name == name; };
    const bool is_known = std::any_of(family.parts.begin(), family.parts.end(), is_name) ||
                          std::find(known.begin(), known.end(), name) != known.end() || is_never_run(name) ||
                          (family.may_be_distilled && name == kIsDistilled);
    if (!is_known && !name.starts_with('_') && !models::is_absent(index, name) && item.value() != Json(false))
      unknown.push_back(name);
  }
  if (!unknown.empty())
    log_warning("[{}] options without effect: {}", index.where(), fmt::join(unknown, ", "));
}

// Returns the folder with model_index.json that was probably meant: the model that `folder` is a part of; if
// it is the cache of a hub, the newest snapshot in it; or a folder in it.
std::optional<std::filesystem::path> model_near(const std::filesystem::path& folder) {
  std::error_code code;
  const std::filesystem::path inside = std::filesystem::absolute(folder, code).lexically_normal() / "";
  const std::filesystem::path above = inside.parent_path().parent_path();
  if (std::filesystem::exists(above / "model_index.json", code)) return above;
  std::string newest;
  std::ifstream(folder / "refs" / "main") >> newest;
  std::vector<std::filesystem::path> below = {folder / "snapshots" / newest};
  for (const auto& parent : {folder / "snapshots", folder}) {
    const std::vector<std::filesystem::path> there = list_folder(parent, code);
    below.insert(below.end(), there.begin(), there.end());
  }
  for (const std::filesystem::path& each : below) {
    if (std::filesystem::exists(each / "model_index.json", code)) return each;
  }
  return std::nullopt;
}

bool has_class(const models::Family& family, std::string_view class_name) {
  return std::any_of(family.parts.begin(), family.parts.end(), [&](const models::PipelinePart& part) {
    return std::find(part.classes.begin(), part.classes.end(), class_name) != part.classes.end();
  });
}

// Throws Error(kInput) for a file that is known to belong to another model than the folder.
void check_single_file(const Model& model) {
  const std::string path = model.single_file->path().string(), folder = model.folder.string();
  const models::Family& family = *model.family;
  if (!family.has_single_files) {
    std::vector<std::string> titles;
    for (const models::Family& each : models::families()) {
      if (each.has_single_files) titles.push_back(each.title);
    }
    input_error(path, "'{}' is of {}, but models that can be read from a single file are those of {}", folder,
                family.title, fmt::join(titles, ", "));
  }
  const auto refuse = [&](std::string_view title) {
    input_error(path, "is of {}, but '{}' is of {}; name a folder of the file's model with {}", title, folder,
                family.title, field("config"));
  };
  const weights::TensorFileHeader& header = model.single_file->header();
  const weights::KnownFile* const known = weights::recognise(header);
  if (known && !has_class(family, known->class_name)) refuse(known->title);
  const bool wants_xl = family.class_name == "StableDiffusionXLPipeline";
  if (weights::is_of_xl(header).value_or(wants_xl) != wants_xl)
    refuse(wants_xl ? "Stable Diffusion 1.x or 2.x" : "Stable Diffusion XL");
  if (!known && !has_class(family, "UNet2DConditionModel"))
    input_error(path, "has no weights of {}, under the names of its own code or of diffusers", family.title);
}

}  // namespace

bool is_never_run(const std::string& part) {
  return part == kSafetyChecker || part == "feature_extractor" || part == "image_encoder";
}

bool Model::has_part(const std::string& name) const {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const models::PipelinePart& part) { return part.name == name; });
}

std::vector<models::TextEncoderPart> Model::text_encoders() const {
  std::vector<models::TextEncoderPart> there;
  for (const models::TextEncoderPart& each : family->text_encoders) {
    if (has_part(each.name)) there.push_back(each);
  }
  return there;
}

models::Conditioning Model::conditioning(const std::vector<models::Conditioning>& parts) const {
  return parts.size() == 1 ? parts.front() : family->join(parts, folder.string());
}

JsonConfig read_model_index(const std::filesystem::path& folder) {
  const std::filesystem::file_type type = type_at(folder);
  if (type == std::filesystem::file_type::not_found) {
    input_error(folder.empty() ? field("model") : folder.string(),
                "no such folder; a model is a folder that diffusers' save_pretrained wrote, or that was "
                "downloaded from a model hub (hf download)");
  }
  if (type != std::filesystem::file_type::directory) {
    input_error(folder.string(), "is a file; name the folder that holds model_index.json");
  }
  if (type_at(folder / "model_index.json") == std::filesystem::file_type::not_found) {
    if (const auto model = model_near(folder))
      input_error(folder.string(), "holds no model_index.json; did you mean {}?", model->string());
    input_error(folder.string(), "holds no model_index.json, so diffusers' save_pretrained did not write it");
  }
  return JsonConfig::read(folder / "model_index.json");
}

Model read_model(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& single_file,
                 const std::string& variant) {
  Model model;
  model.stamps = FileStamps(folder);
  const JsonConfig index = read_model_index(folder);
  model.folder = folder;
  model.family = &models::find_family(index.string("_class_name"), index.where());
  if (single_file) {
    model.single_file = weights::open_tensor_file(*single_file);
    check_single_file(model);
  }
  model.variant = variant;
  model.parts = models::parts_of(index, *model.family);
  check_variant(model);

  model.shape = model.family->read_shape(folder);
  // diffusers does not load a safety checker for a single file either.
  model.has_safety_checker = !single_file && has_part(index, folder, kSafetyChecker);

  model.is_distilled = model.family->may_be_distilled && index.boolean(kIsDistilled, false);

  model.scale = model.family->read_latent_scale(folder, model.shape.latent_channels);
  model.scheduler = read_scheduler(folder, index, model.family->scheduler_library);
  if (model.family->overrides_scheduler_file)
    model.scheduler = samplers::with_stable_diffusion_options(model.scheduler);
  return model;
}

void check_weights(const Model& model) {
  warn_of_unknown_keys(read_model_index(model.folder), *model.family);
  models::LoadOptions options;
  options.placement.device = at::kMeta;
  options.single_file = model.single_file;
  options.variant = model.variant;
  models::LoadStatistics cost;
  std::vector<models::Conditioning> parts;  // of an empty prompt
  for (const models::TextEncoderPart& each : model.text_encoders())
    parts.push_back(each.load(model.folder, options, cost)
                        ->encode({models::Prompt()}, model.family->default_max_sequence_length)
                        .front());
  const models::Conditioning prompt = model.conditioning(parts);
  const auto denoiser = model.family->load_denoiser(model.folder, options, cost);
  const auto width_of = [&](const char* name) {
    return prompt.contains(name) ? prompt.at(name).size(-1) : 0;
  };
  if (width_of(models::kTokens) != denoiser->conditioning_width()) {
    input_error(
        model.folder.string(),
        "the text encoder gives tokens of width {}, but the denoiser takes {}; are they of one model?",
        width_of(models::kTokens), denoiser->conditioning_width());
  }
  if (denoiser->pooled_width() != 0 && denoiser->pooled_width() != width_of(models::kPooled)) {
    input_error(model.folder.string(),
                "the denoiser takes a pooled prompt of width {}, but the text encoder gives {}; are they of "
                "one model?",
                denoiser->pooled_width(),
                prompt.contains(models::kPooled) ? std::to_string(width_of(models::kPooled)) : "none");
  }
  model.family->load_decoder(model.folder, options, cost);
  if (model.family->load_encoder) model.family->load_encoder(model.folder, options, cost);
}

}  // namespace tessera::engine
