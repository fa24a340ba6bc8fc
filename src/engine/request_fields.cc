// This file holds the table of the fields of a request.
#include <fmt/ranges.h>

#include <charconv>

#include "core/error.h"
#include "engine/request.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

constexpr double kMaxSide = 16384, kMaxTokens = 4096, kMaxLayers = 256;

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

std::optional<at::ScalarType> read_dtype(const std::string& text) {
  for (const auto& [name, dtype] : kDtypes) {
    if (name == text) return dtype;
  }
  return std::nullopt;  // "auto"
}

at::Device read_device(const std::string& text) {
  if (text == "cpu") return at::kCPU;
  const bool numbered = text.starts_with("cuda:");
  int8_t index = 0;
  const char* const end = text.data() + text.size();
  const auto read = numbered ? std::from_chars(text.data() + 5, end, index) : std::from_chars_result{end, {}};
  if ((text != "cuda" && !numbered) || read.ec != std::errc() || read.ptr != end || index < 0)
    usage_error(field("device"), "expected cpu, cuda or cuda:N, got '{}'", text);
  // The device is not looked up here, because this would start CUDA long before it is needed.
  return numbered ? at::Device(at::kCUDA, index) : at::Device(at::kCUDA);
}

OutputType read_output_type(const std::string& text) {
  if (text == "image" || text == "pil") return OutputType::kImage;  // its name in diffusers
  if (text == "latent") return OutputType::kLatent;
  usage_error(field("output_type"), "expected image or latent, got '{}'", text);
}

std::string write_pair(const Pair& pair) {
  return fmt::format("{}x{}", pair.first, pair.second);
}

auto reader_of_pair(const char* name) {
  return [name](const std::string& text) { return read_pair(name, text); };
}

std::string scheduler_help() {
  std::vector<std::string> names;
  for (const samplers::SamplerName& known : samplers::known_samplers()) names.push_back(known.short_name);
  return fmt::format(
      "Sampler: {}, or a class name of diffusers; -karras, -exponential or -beta after a short name whose "
      "class has these noise levels [the model's]",
      fmt::join(names, ", "));
}

// Makes the field with the texts for text encoder `i` after the first.
Field<Request> of_encoder(size_t i, std::array<std::vector<std::string>, kOtherPrompts> Request::*member,
                          FieldInfo info) {
  struct Texts {
    std::vector<std::string> all;
  };
  const Field<Texts> texts = plain_field(&Texts::all, std::move(info));
  return {texts, [=](const Request& from) { return texts.get({(from.*member)[i]}); },
          [=](Request& to, const Json& value) {
            Texts given;
            texts.set(given, value);
            (to.*member)[i] = std::move(given.all);
          },
          [=](Request& from) { (from.*member)[i].clear(); }};
}

Fields<Request> make_fields() {
  using R = Request;
  const FieldGroup prompt = FieldGroup::kPrompt, image = FieldGroup::kImage, sampling = FieldGroup::kSampling,
                   memory = FieldGroup::kMemory, machine = FieldGroup::kMachine;
  FieldInfo dtype{"dtype", "Data type [auto: bf16 where the hardware multiplies it, else fp32]", machine,
                  "TYPE"};
  dtype.choices = {"auto", "fp32", "bf16", "fp16"};
  return {
      of_picture(plain_field(
          &R::prompts,
          {"prompt", "Text prompt; several prompts give several images or videos", prompt, "TEXT"})),
      of_picture(of_encoder(0, &R::other_prompts,
                            {"prompt_2",
                             "Prompt for the second text encoder: one for all, or one per prompt "
                             "(repeat the option) [the prompt]",
                             prompt, "TEXT"})),
      of_picture(plain_field(
          &R::negative_prompts,
          {"negative_prompt", "Negative prompt: one for all, or one per prompt (repeat the option) [none]",
           prompt, "TEXT"})),
      of_picture(of_encoder(0, &R::other_negative_prompts,
                            {"negative_prompt_2",
                             "Negative prompt for the second text encoder: one for all, or one "
                             "per prompt (repeat the option) [the "
                             "negative prompt]",
                             prompt, "TEXT"})),
      of_picture(plain_field(&R::clean_caption,
                             {"clean_caption",
                              "Remove links, markup and other web-page residue from prompts [on if the model "
                              "supports it]",
                              prompt},
                             "Only lower-case prompts and strip white space")),
      plain_field(
          &R::images,
          {"image", "Picture to which the images refer, such as one to edit (repeat the option) [none]",
           prompt, "FILE"}),
      plain_field(&R::image_sizes,
                  {"image_size",
                   "Size of such a picture, for a plan without its file (repeat the option) [the file's]",
                   prompt, "HxW"}),
      plain_field(&R::height,
                  {"height",
                   "Image height: a multiple of 8 (PixArt, Z-Image and FLUX.2: of 16), or any with "
                   "resolution binning; for videos any [the model's]",
                   image, "PIXELS", 1, kMaxSide}),
      plain_field(&R::width, {"width",
                              "Image width: a multiple of 8 (PixArt, Z-Image and FLUX.2: of 16), or any with "
                              "resolution binning; for videos any [the model's]",
                              image, "PIXELS", 1, kMaxSide}),
      of_picture(plain_field(&R::seed, {"seed", "Seed of the random numbers [random]", image, "N"})),
      of_picture(plain_field(
          &R::num_images_per_prompt,
          {"num_images_per_prompt", "Number of images per prompt [1]", image, "N", 1, kMaxPictures})),
      plain_field(
          &R::vae_tiling,
          {"vae_tiling", "Decode in overlapping tiles: less memory, slightly different images", memory}),
      plain_field(
          &R::vae_block_size,
          {"vae_block_size",
           "Limit the rows that a convolution of the decoder computes at a time, to save memory [by the "
           "machine's memory]",
           memory, "N", 1, kMaxSide}),
      plain_field(&R::resolution_binning,
                  {"use_resolution_binning",
                   "Generate at the training size of the nearest aspect ratio, then resize and crop [on if "
                   "the model has "
                   "such sizes]",
                   image},
                  "Generate at exactly the requested size"),
      plain_field(&R::num_inference_steps,
                  {"num_inference_steps",
                   "Number of denoising steps; most samplers allow up to 1000, LCM and TCD up to 50 [20; "
                   "Stable Diffusion, Z-Image and FLUX.2 50, Open-Sora 30, 1.1 100]",
                   sampling, "N", 1}),
      of_picture(
          plain_field(&R::guidance_scale,
                      {"guidance_scale",
                       "Guidance scale: higher values follow the prompt more closely, 1 (Z-Image: 0) turns "
                       "guidance off [PixArt 4.5, Stable Diffusion 7.5, XL and Z-Image 5, FLUX.2 4, "
                       "Open-Sora 7]",
                       sampling, "X", 0})),
      plain_field(&R::guidance_rescale,
                  {"guidance_rescale", "Guidance rescale factor [0]", sampling, "X", 0, 1}),
      plain_field(
          &R::cfg_normalization,
          {"cfg_normalization",
           "Limit the norm of a guided prediction to X times that of the prediction for the prompt; 0 "
           "sets no limit [0]",
           sampling, "X", 0}),
      plain_field(
          &R::cfg_truncation,
          {"cfg_truncation",
           "Guide only while the time of a step, which goes from 0 (noise) to 1 (image), is at most X [1]",
           sampling, "X", 0, 1}),
      of_picture(plain_field(
          &R::clip_skip,
          {"clip_skip", "Skip the last N CLIP layers (diffusers' count) [0]", prompt, "N", 0, kMaxLayers})),
      text_field(&R::original_size,
                 {"original_size", "SDXL: original size to condition on [the image's size]", image, "HxW"},
                 write_pair, reader_of_pair("original_size")),
      text_field(&R::target_size,
                 {"target_size", "SDXL: target size to condition on [the image's size]", image, "HxW"},
                 write_pair, reader_of_pair("target_size")),
      text_field(&R::crops_coords_top_left,
                 {"crops_coords_top_left", "SDXL: crop position to condition on [0x0]", image, "TOPxLEFT"},
                 write_pair, reader_of_pair("crops_coords_top_left")),
      plain_field(&R::scheduler, {"scheduler", scheduler_help(), sampling, "NAME"}),
      plain_field(
          &R::scheduler_options,
          {"scheduler_option",
           "Option of the sampler's class in diffusers, such as use_karras_sigmas=true; the value is JSON "
           "or a word (repeat the option) [the model's]",
           sampling, "KEY=VALUE"}),
      plain_field(&R::eta,
                  {"eta", "DDIM and TCD: amount of noise added in each step [0]", sampling, "X", 0, 1}),
      plain_field(&R::max_sequence_length,
                  {"max_sequence_length", "Maximum prompt length in tokens [the model's]", prompt, "N", 1,
                   kMaxTokens}),
      text_field(
          &R::output_type,
          {"output_type", "Kind of output: image or latent [image]", FieldGroup::kOutput, "TYPE"},
          [](OutputType type) { return type == OutputType::kImage ? "image" : "latent"; }, read_output_type),
      with_scope(FieldScope::kRank,
                 text_field(
                     &R::device, {"device", "Device: cpu, cuda or cuda:N [cpu]", machine, "DEVICE"},
                     [](const at::Device& device) { return device.str(); }, read_device)),
      text_field(&R::dtype, std::move(dtype), dtype_name, read_dtype)};
}

}  // namespace

Pair read_pair(const char* name, const std::string& text) {
  Pair pair;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto first = std::from_chars(begin, end, pair.first);
  const bool has_second = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
  const auto second = has_second ? std::from_chars(first.ptr + 1, end, pair.second) : first;
  const auto fits = [](int64_t number) { return number >= 0 && number <= static_cast<int64_t>(kMaxSide); };
  if (!has_second || second.ec != std::errc() || second.ptr != end || !fits(pair.first) || !fits(pair.second))
    usage_error(field(name), "expected two numbers from 0 to {}, such as 1024x1024, got '{}'", kMaxSide,
                text);
  return pair;
}

const Fields<Request>& request_fields() {
  static const Fields<Request> fields = [] {
    Fields<Request> all = make_fields();
    add_fields(all, &Request::video, models::video_fields());
    return all;
  }();
  return fields;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return name;
  }
  return c10::toString(dtype);
}

}  // namespace tessera::engine
