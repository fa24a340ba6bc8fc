// A request says what a run should generate; its settings say what that means for a given model.
#pragma once

#include <ATen/core/Tensor.h>

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
#include "tessera/request.h"

namespace tessera::engine {

inline constexpr int64_t kMaxPictures = 1024;  // images or videos of a run

using tessera::kOtherPrompts;
using tessera::OutputType;
using tessera::Pair;
// resolve() chooses whatever is left out.
using tessera::Request;

// Reads "HEIGHTxWIDTH" of a field. Throws Error(kUsage).
Pair read_pair(const char* name, const std::string& text);

// Returns the table of a request's JSON fields, for write_fields() and read_fields(); the latter throws
// Error(kUsage) for everything that is wrong for any model.
const Fields<Request>& request_fields();

// Returns the short name of a dtype as in JSON (fp32, bf16, fp16), or libtorch's name.
std::string dtype_name(at::ScalarType dtype);

// A request with every choice made.
struct Settings {
  // Every field has a value, except the scheduler and fields without effect.
  Request request;
  std::vector<std::string> warnings;  // for the user, before the run
  int64_t height = 0;                 // of the output, in pixels
  int64_t width = 0;
  // Of the model's image before resizing, in pixels. A video is not resized, but loses the rows and columns
  // that do not fill a row or column of latents.
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

  // Whether there is an unconditional branch.
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
