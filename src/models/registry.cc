// This file holds the table of model families.
#include <algorithm>

#include "core/error.h"
#include "models/autoencoder_kl.h"
#include "models/autoencoder_kl_flux2.h"
#include "models/family.h"
#include "models/flux2.h"
#include "models/loading.h"
#include "models/pixart.h"
#include "models/stable_diffusion.h"
#include "models/stdit/frame_vae.h"
#include "models/stdit/loading.h"
#include "models/stdit/open_sora.h"
#include "models/stdit/video_settings.h"
#include "models/t5_prompt.h"
#include "models/unet_2d_condition.h"
#include "models/video_request.h"
#include "models/z_image.h"

namespace tessera::models {
namespace {

// These models were trained on latents that are only scaled, so shift, mean and deviation in the VAE's file
// are ignored.
std::unique_ptr<Decoder> load_scaled_decoder(const std::filesystem::path& model, const LoadOptions& options,
                                             LoadStatistics& statistics) {
  auto decoder = load_autoencoder_kl_decoder(model / "vae", options, statistics);
  decoder->config.shift_factor = 0;
  decoder->config.latents_mean.clear();
  decoder->config.latents_std.clear();
  return decoder;
}

bool is_of_sigma(const Json& config) {
  return config.value("use_additional_conditions", Json()) == Json(false);
}

bool is_of_alpha(const Json& config) {
  return !is_of_sigma(config);
}

bool is_of_xl(const Json& config) {
  return config.value("addition_embed_type", Json()) == Json("text_time");
}

bool takes_guidance_scale(const Json& config) {
  return !config.value("time_cond_proj_dim", Json()).is_null();
}

bool is_of_latent_consistency(const Json& config) {
  return !is_of_xl(config) && takes_guidance_scale(config);
}

bool is_of_stable_diffusion(const Json& config) {
  return !is_of_xl(config) && !takes_guidance_scale(config);
}

// For a family whose denoiser has a class of its own.
bool is_any(const Json& /*config*/) {
  return true;
}

// transformers has two names for one tokenizer.
PipelinePart tokenizer(std::string name, const std::string& class_name) {
  return {std::move(name), "transformers", {class_name, class_name + "Fast"}};
}

const PipelinePart kDecoderPart = {"vae", "diffusers", {"AutoencoderKL"}};

Family pixart(std::string class_name, std::string title, int64_t max_sequence_length) {
  const bool is_alpha = class_name == "PixArtAlphaPipeline";
  return {.class_name = std::move(class_name),
          .title = std::move(title),
          .default_steps = 20,
          .default_guidance = 4.5,
          // The first releases name the class from which diffusers derived this one.
          .parts = {tokenizer("tokenizer", "T5Tokenizer"),
                    {"text_encoder", "transformers", {"T5EncoderModel"}},
                    {"transformer", "diffusers", {"PixArtTransformer2DModel", "Transformer2DModel"}},
                    kDecoderPart},
          .default_max_sequence_length = max_sequence_length,
          .own_fields = {"clean_caption", "max_sequence_length", "use_resolution_binning"},
          .lone = {is_alpha ? is_of_alpha : is_of_sigma, R"({"_class_name": "DPMSolverMultistepScheduler"})"},
          .has_single_files = false,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = is_alpha,
          .bin_resolution = pixart_bin_resolution,
          .read_shape = read_pixart_shape,
          .read_latent_scale = read_autoencoder_kl_scale,
          .text_encoders = {{"text_encoder", load_t5_of_captions}},
          .load_denoiser = load_pixart,
          .load_decoder = load_scaled_decoder};
}

// XL's pipeline in diffusers also undoes the mean and deviation of the channels, but not a shift.
std::unique_ptr<Decoder> load_stable_diffusion_xl_decoder(const std::filesystem::path& model,
                                                          const LoadOptions& options,
                                                          LoadStatistics& statistics) {
  auto decoder = load_autoencoder_kl_decoder(model / "vae", options, statistics);
  decoder->config.shift_factor = 0;
  return decoder;
}

std::optional<std::pair<int64_t, int64_t>> no_binning(int64_t /*height*/, int64_t /*width*/,
                                                      int64_t /*sample_size*/) {
  return std::nullopt;
}

// CLIP has 77 positions, which include the begin and end tokens.
constexpr int64_t kClipTokens = 77;

Family stable_diffusion(std::string class_name, std::string title, double guidance, bool is_xl) {
  std::vector<std::string> own = {"guidance_rescale", "clip_skip"};
  std::vector<TextEncoderPart> text_encoders = {
      {"text_encoder", is_xl ? load_stable_diffusion_xl_text_encoder : load_stable_diffusion_text_encoder}};
  std::vector<PipelinePart> parts = {tokenizer("tokenizer", "CLIPTokenizer"),
                                     {"text_encoder", "transformers", {"CLIPTextModel"}},
                                     {"unet", "diffusers", {"UNet2DConditionModel"}},
                                     kDecoderPart};
  if (is_xl) {
    parts[1].classes.emplace_back("CLIPTextModelWithProjection");
    parts.push_back(tokenizer("tokenizer_2", "CLIPTokenizer"));
    parts.push_back({"text_encoder_2", "transformers", parts[1].classes});
    parts[0].may_be_absent = parts[1].may_be_absent = true;
    text_encoders.push_back({"text_encoder_2", load_stable_diffusion_xl_text_encoder_2});
    for (const char* name :
         {"prompt_2", "negative_prompt_2", "original_size", "target_size", "crops_coords_top_left"})
      own.emplace_back(name);
  }
  return {.class_name = std::move(class_name),
          .title = std::move(title),
          .default_steps = 50,
          .default_guidance = guidance,
          .parts = std::move(parts),
          .default_max_sequence_length = kClipTokens,
          .own_fields = std::move(own),
          .lone = is_xl ? LoneConfig{is_of_xl, R"({"_class_name": "EulerDiscreteScheduler"})"}
                        : LoneConfig{is_of_stable_diffusion,
                                     R"({"_class_name": "PNDMScheduler", "skip_prk_steps": true})"},
          .has_single_files = true,
          .overrides_scheduler_file = !is_xl,
          .takes_sample_of_single_step = false,
          .bin_resolution = no_binning,
          .read_shape = is_xl ? read_unet_shape : read_stable_diffusion_shape,
          .read_latent_scale = read_autoencoder_kl_scale,
          .text_encoders = std::move(text_encoders),
          .load_denoiser = load_unet,
          .load_decoder = is_xl ? load_stable_diffusion_xl_decoder : load_scaled_decoder,
          .join = is_xl ? join_stable_diffusion_xl : join_conditionings};
}

DenoiserShape read_latent_consistency_shape(const std::filesystem::path& model) {
  const DenoiserShape shape = read_unet_shape(model);
  if (!shape.takes_guidance_scale)
    input_error((part_folder(model, "unet") / "config.json").string(),
                "'time_cond_proj_dim' is missing, which U-Nets of a LatentConsistencyModelPipeline have");
  return shape;
}

// Stable Diffusion with a U-Net that takes the guidance scale as an input (arXiv:2310.04378).
Family latent_consistency() {
  Family family =
      stable_diffusion("LatentConsistencyModelPipeline", "Latent consistency model", 8.5, /*is_xl=*/false);
  family.default_steps = 4;
  family.own_fields = {"clip_skip"};
  family.lone = {is_of_latent_consistency, R"({"_class_name": "LCMScheduler"})"};
  family.has_single_files = false;
  family.overrides_scheduler_file = false;
  family.read_shape = read_latent_consistency_shape;
  return family;
}

// Its pipeline in diffusers undoes the shift of latents, but not the mean and deviation of their channels.
std::unique_ptr<Decoder> load_shifted_decoder(const std::filesystem::path& model, const LoadOptions& options,
                                              LoadStatistics& statistics) {
  auto decoder = load_autoencoder_kl_decoder(model / "vae", options, statistics);
  decoder->config.latents_mean.clear();
  decoder->config.latents_std.clear();
  return decoder;
}

Family z_image() {
  return {.class_name = "ZImagePipeline",
          .title = "Z-Image",
          .default_steps = 50,
          .default_guidance = 5.0,
          .parts = {tokenizer("tokenizer", "Qwen2Tokenizer"),
                    {"text_encoder", "transformers", {"Qwen3Model", "Qwen3ForCausalLM"}},
                    {"transformer", "diffusers", {"ZImageTransformer2DModel"}},
                    kDecoderPart},
          .default_max_sequence_length = 512,
          .own_fields = {"max_sequence_length", "cfg_normalization", "cfg_truncation"},
          .lone = {is_any, R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0})"},
          .has_single_files = true,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = false,
          .has_even_sigmas = true,
          .unguided_scale = 0,
          .default_side = 1024,
          .bin_resolution = no_binning,
          .read_shape = read_z_image_shape,
          .read_latent_scale = read_autoencoder_kl_scale,
          .text_encoders = {{"text_encoder", load_z_image_text_encoder}},
          .load_denoiser = load_z_image,
          .load_decoder = load_shifted_decoder};
}

// The families of FLUX.2 differ in this field.
bool takes_flux2_guidance(const Json& config) {
  return config.value("guidance_embeds", Json(true)) == Json(true);
}

bool is_of_flux2_klein(const Json& config) {
  return !takes_flux2_guidance(config);
}

// The pipeline gives no guidance scale, even to a transformer that would take one.
DenoiserShape read_flux2_klein_shape(const std::filesystem::path& model) {
  DenoiserShape shape = read_flux2_shape(model);
  shape.takes_guidance_scale = false;
  return shape;
}

DenoiserShape read_flux2_dev_shape(const std::filesystem::path& model) {
  const JsonConfig config = JsonConfig::read(part_folder(model, "transformer") / "config.json");
  if (!config.boolean("guidance_embeds", true))
    config.fail("guidance_embeds", "true, as in FLUX.2 dev; that of FLUX.2 klein is false");
  return read_flux2_shape(model);
}

Family flux2_klein() {
  return {.class_name = "Flux2KleinPipeline",
          .title = "FLUX.2 klein",
          .default_steps = 50,
          .default_guidance = 4.0,
          .parts = {tokenizer("tokenizer", "Qwen2Tokenizer"),
                    {"text_encoder", "transformers", {"Qwen3ForCausalLM", "Qwen3Model"}},
                    {"transformer", "diffusers", {"Flux2Transformer2DModel"}},
                    {"vae", "diffusers", {"AutoencoderKLFlux2"}}},
          .default_max_sequence_length = 512,
          .own_fields = {"max_sequence_length", "image", "image_size"},
          .lone = {is_of_flux2_klein,
                   R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0,
                       "use_dynamic_shifting": true})",
                   {.pixels = 16}},
          .has_single_files = true,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = false,
          .has_even_sigmas = true,
          .mu = flux2_mu,
          .may_be_distilled = true,
          .bin_resolution = no_binning,
          .read_shape = read_flux2_klein_shape,
          .read_latent_scale = read_autoencoder_kl_flux2_scale,
          .text_encoders = {{"text_encoder", load_flux2_klein_text_encoder}},
          .load_denoiser = load_flux2,
          .load_decoder = load_autoencoder_kl_flux2_decoder,
          .load_encoder = load_autoencoder_kl_flux2_encoder,
          .output_latents = unpacked_flux2_latents};
}

// Returns them as tokens, in the form that the transformer takes.
at::Tensor packed_flux2_latents(const std::filesystem::path& /*model*/, const LoadOptions& /*options*/,
                                const at::Tensor& z) {
  return z.flatten(2).transpose(1, 2).contiguous();
}

// The same with another language model, and with a transformer that takes the guidance scale as an input.
Family flux2_dev() {
  Family family = flux2_klein();
  family.class_name = "Flux2Pipeline";
  family.title = "FLUX.2 dev";
  family.parts[0] = {"tokenizer", "transformers", {"PixtralProcessor"}};
  family.parts[1].classes = {"Mistral3ForConditionalGeneration"};
  family.lone.is_of_family = takes_flux2_guidance;
  family.may_be_distilled = false;
  family.read_shape = read_flux2_dev_shape;
  family.text_encoders = {{"text_encoder", load_flux2_dev_text_encoder}};
  family.output_latents = packed_flux2_latents;
  return family;
}

Family open_sora_1_1() {
  return {.class_name = "OpenSoraV1_1Pipeline",
          .title = "Open-Sora 1.1",
          .default_steps = 100,
          .default_guidance = 7.0,
          .parts = {tokenizer("tokenizer", "T5Tokenizer"),
                    {"text_encoder", "transformers", {"T5EncoderModel"}},
                    {"transformer", "opensora", {"STDiT2"}},
                    kDecoderPart},
          .scheduler_library = "opensora",
          .default_max_sequence_length = 200,
          .own_fields = {"clean_caption", "max_sequence_length", "num_frames", "fps", "frame_interval",
                         "resolution", "aspect_ratio", "reference_path", "mask_strategy", "loop",
                         "condition_frame_length", "condition_frame_edit"},
          .lone = {is_any, R"({"_class_name": "IDDPM"})"},
          .has_single_files = false,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = false,
          .bin_resolution = no_binning,
          .read_shape = read_stdit2_shape,
          .read_latent_scale = read_autoencoder_kl_scale,
          .text_encoders = {{"text_encoder", load_open_sora_text_encoder}},
          .load_denoiser = load_stdit2,
          .load_decoder = load_frame_decoder,
          .load_encoder = load_frame_encoder,
          .resolve_video = resolve_open_sora_1_1_video};
}

Family open_sora_1_2() {
  return {.class_name = "OpenSoraPipeline",
          .title = "Open-Sora 1.2",
          .default_steps = 30,
          .default_guidance = 7.0,
          .parts = {tokenizer("tokenizer", "T5Tokenizer"),
                    {"text_encoder", "transformers", {"T5EncoderModel"}},
                    {"transformer", "opensora", {"STDiT3"}},
                    {"vae", "opensora", {"OpenSoraVAE_V1_2"}}},
          .scheduler_library = "opensora",
          .default_max_sequence_length = 300,
          .own_fields = {"clean_caption", "max_sequence_length", "num_frames", "fps", "resolution",
                         "aspect_ratio", "aesthetic_score", "motion_score", "camera_motion", "reference_path",
                         "mask_strategy", "loop", "condition_frame_length", "condition_frame_edit", "align"},
          .lone = {is_any, R"({"_class_name": "RFLOW"})", {.clip = 17, .frames = 4}},
          .has_single_files = false,
          .overrides_scheduler_file = false,
          .takes_sample_of_single_step = false,
          .bin_resolution = no_binning,
          .read_shape = read_stdit3_shape,
          .read_latent_scale = read_video_vae_scale,
          .text_encoders = {{"text_encoder", load_open_sora_text_encoder}},
          .load_denoiser = load_stdit3,
          .load_decoder = load_video_vae_decoder,
          .load_encoder = load_video_vae_encoder,
          .resolve_video = resolve_open_sora_1_2_video};
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      pixart("PixArtAlphaPipeline", "PixArt-alpha", 120),
      pixart("PixArtSigmaPipeline", "PixArt-Sigma", 300),
      stable_diffusion("StableDiffusionPipeline", "Stable Diffusion", 7.5, /*is_xl=*/false),
      stable_diffusion("StableDiffusionXLPipeline", "Stable Diffusion XL", 5.0, /*is_xl=*/true),
      latent_consistency(),
      open_sora_1_1(),
      open_sora_1_2(),
      z_image(),
      flux2_klein(),
      flux2_dev(),
  };
  return table;
}

const Family& find_family(const std::string& class_name, const std::string& where) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (family.class_name == class_name) return family;
    known.push_back(family.class_name);
  }
  input_error(where, "pipelines of class '{}' cannot run here; these can: {}", class_name,
              fmt::join(known, ", "));
}

Conditioning join_conditionings(const std::vector<Conditioning>& parts, const std::string& /*where*/) {
  Conditioning all;
  for (const Conditioning& part : parts) all.insert(part.begin(), part.end());
  return all;
}

bool is_absent(const JsonConfig& index, const std::string& part) {
  const Json value = index.values().value(part, Json());
  return value.is_null() ||
         (value.is_array() && value.size() == 2 && value[0].is_null() && value[1].is_null());
}

PartClass class_of(const JsonConfig& index, const std::string& part) {
  const Json value = index.values().value(part, Json());
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string())
    index.fail(part, "a library and a class");
  return {value[0].get<std::string>(), value[1].get<std::string>()};
}

std::vector<PipelinePart> parts_of(const JsonConfig& index, const Family& family) {
  std::vector<PipelinePart> parts;
  for (const PipelinePart& part : family.parts) {
    if (part.may_be_absent && is_absent(index, part.name)) continue;
    const PartClass named = class_of(index, part.name);
    const bool is_known = named.library == part.library && std::find(part.classes.begin(), part.classes.end(),
                                                                     named.name) != part.classes.end();
    if (!is_known)
      index.refuse(part.name, fmt::format("this class cannot run here; of {} these can: {}", part.library,
                                          fmt::join(part.classes, ", ")));
    parts.push_back(part);
  }
  return parts;
}

}  // namespace tessera::models
