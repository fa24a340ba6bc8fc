// A request says what a run should generate; its settings say what that means for a given model.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fields.h"
#include "engine/model.h"
#include "engine/reference_pictures.h"
#include "models/video_request.h"
#include "parallel/layout.h"
#include "samplers/sampler.h"

namespace tessera::engine {

inline constexpr int64_t kMaxPictures = 1024;  // images or videos of a run

// Text encoders of a model that have prompts of their own, besides the first.
inline constexpr size_t kOtherPrompts = 1;

enum class OutputType { kImage, kLatent };

// Two numbers of pixels: height and width, or top and left.
struct Pair {
  int64_t first = 0, second = 0;
  bool operator==(const Pair&) const = default;
};

// Reads "HEIGHTxWIDTH" of a field. Throws Error(kUsage).
Pair read_pair(const char* name, const std::string& text);

// The request as given. resolve() chooses whatever is left out.
struct Request {
  std::vector<std::string> prompts;  // UTF-8; at least one, each may be empty
  // For the second text encoder and those after it: of each none, one for all, or one for each prompt.
  std::array<std::vector<std::string>, kOtherPrompts> other_prompts;
  std::vector<std::string> negative_prompts;  // as for one of those
  std::array<std::vector<std::string>, kOtherPrompts> other_negative_prompts;
  // Files of pictures to which the images refer, and the size of each as "HEIGHTxWIDTH", by default that of
  // the file: sizes alone are enough for a plan.
  std::vector<std::string> images, image_sizes;
  std::optional<int64_t> height;  // in pixels; default: that of the first of these, or the model's
  std::optional<int64_t> width;
  std::optional<int64_t> num_inference_steps;
  // At Family::unguided_scale (1 for most) and below only the positive branch is computed.
  // DenoiserShape::takes_guidance_scale: always.
  std::optional<double> guidance_scale;
  // Interpolates the deviation of the guided prediction towards that of the positive branch
  // (arXiv:2305.08891), 0 to 1.
  std::optional<double> guidance_rescale;
  std::optional<double> cfg_normalization, cfg_truncation;  // Guidance::normalization and truncation
  std::optional<bool> clean_caption;                        // clean prompts as text::clean_caption() does
  std::optional<int64_t> clip_skip;
  std::optional<Pair> original_size, target_size, crops_coords_top_left;
  std::optional<uint64_t> seed;  // default: random
  int64_t num_images_per_prompt = 1;
  std::optional<std::string> scheduler;        // default: the model's
  std::vector<std::string> scheduler_options;  // of its class, as "KEY=VALUE" (samplers/options.h)
  std::optional<double> eta;                   // only some samplers have it
  std::optional<int64_t> max_sequence_length;
  bool vae_tiling = false;  // decode tile by tile
  // Rows that a convolution of the decoder computes at a time, where it copies its input; by default chosen
  // by the machine's memory.
  std::optional<int64_t> vae_block_size;
  std::optional<bool>
      resolution_binning;  // generate at the nearest size of the training, then resize and crop
  models::VideoRequest video;
  OutputType output_type = OutputType::kImage;
  at::Device device = at::kCPU;
  std::optional<at::ScalarType> dtype;  // default: bf16 where the device multiplies it in hardware, else fp32
};

// The table for a request as JSON: write_fields() and read_fields(), which throws Error(kUsage) for
// everything that is wrong for any model.
const Fields<Request>& request_fields();

// Returns the short name of a dtype as in JSON: fp32, bf16, fp16, or libtorch's name.
std::string dtype_name(at::ScalarType dtype);

// A request with every choice made.
struct Settings {
  // Every field has its value but the scheduler and the fields without effect.
  Request request;
  std::vector<std::string> warnings;  // for the user, before the run
  int64_t height = 0;                 // of the output, in pixels
  int64_t width = 0;
  // Of the model's image before resizing, in pixels. A video is not resized, but it lacks the rows and
  // columns of this size that do not fill a row or column of latents.
  int64_t model_height = 0;
  int64_t model_width = 0;
  int64_t frames = 1;
  models::LatentShape latents = {};  // of one image
  std::vector<ReferencePicture> references;
  int64_t steps = 0;
  double guidance = 0;
  int64_t max_sequence_length = 0;
  std::string scheduler;  // class name
  double guidance_rescale = 0, cfg_normalization = 0, cfg_truncation = 1;
  double unguided_scale = 1;          // Family::unguided_scale
  bool takes_guidance_scale = false;  // DenoiserShape::takes_guidance_scale
  bool has_null_text = false;         // DenoiserShape::has_null_text
  models::VideoSettings video;

  // The prompts of both branches of guidance for the request's prompt `index`, in a part of a long video.
  models::Prompt prompt(size_t index, int64_t loop = 0) const;
  models::Prompt negative_prompt(size_t index, int64_t loop = 0) const;
  // Frames of the whole video.
  int64_t all_frames() const { return frames + (video.loops - 1) * (frames - video.repeated); }

  // Whether videos begin from frames: of references, or of the part before.
  bool has_given() const;

  // Whether there is an unconditional branch.
  bool guided() const { return guidance > unguided_scale && !takes_guidance_scale; }
  // The scale of Denoiser::guide().
  double branch_scale() const { return guided() ? guidance + (1 - unguided_scale) : 1; }
  // Returns the number of images of the run; those of one prompt are adjacent.
  int64_t pictures() const {
    return static_cast<int64_t>(request.prompts.size()) * request.num_images_per_prompt;
  }
};

// Makes every choice. Throws Error(kUsage) that names the field, its value and what would be valid. Draws a
// seed if there is none, so of several ranks either one calls this, or all call it with a request that has a
// seed.
Settings resolve(const Request& request, const Model& model);

// The class of a run's sampler, which may be unknown: make_sampler() refuses it then.
std::string scheduler_class(const Request& request, const Model& model);
// Makes the sampler of a run. Throws Error for one that does not exist or cannot take so many steps.
std::unique_ptr<samplers::Sampler> make_sampler(const Settings& settings, const Model& model);

// Returns what the rules of parallel layouts need to know about the requests of a batch.
parallel::Workload workload(std::span<const Settings> batch, const Model& model);
parallel::Workload workload(const Settings& settings, const Model& model);

}  // namespace tessera::engine
