// What a run is asked for, and what that means for a given model.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fields.h"
#include "engine/model.h"
#include "parallel/layout.h"

namespace tessera::engine {

enum class OutputType { kImage, kLatent };

// Two numbers of pixels: height and width, or top and left.
struct Pair {
  int64_t first = 0, second = 0;
  bool operator==(const Pair&) const = default;
};

// The wish. resolve() chooses what is left out.
struct Request {
  std::vector<std::string> prompts;    // UTF-8; at least one, each may be empty
  std::vector<std::string> prompts_2;  // for a second text encoder: none, one for all, or one for each
  std::vector<std::string> negative_prompts, negative_prompts_2;  // as prompts_2
  std::optional<int64_t> height;                                  // pixels; the model's
  std::optional<int64_t> width;
  std::optional<int64_t> num_inference_steps;
  std::optional<double> guidance_scale;  // 1 and less: only the positive branch is computed
  // How far the deviation of the sum is brought back to that of the positive branch (arXiv:2305.08891), 0
  // to 1.
  std::optional<double> guidance_rescale;
  std::optional<int64_t> clip_skip;
  std::optional<Pair> original_size, target_size, crops_coords_top_left;
  std::optional<uint64_t> seed;  // drawn at random
  int64_t num_images_per_prompt = 1;
  std::optional<std::string> scheduler;  // instead of the model's
  std::optional<double> eta;             // only some samplers have it
  std::optional<int64_t> max_sequence_length;
  bool vae_tiling = false;  // pictures are decoded tile by tile
  // Rows that a convolution of the decoder makes at once, where it copies what it reads; by free memory.
  std::optional<int64_t> vae_block_size;
  std::optional<bool> resolution_binning;  // paint at the nearest size of the training, then resize and crop
  OutputType output_type = OutputType::kImage;
  at::Device device = at::kCPU;
  std::optional<at::ScalarType> dtype;  // bf16 where the device multiplies it in hardware, else fp32
};

// A request as JSON: write_fields(), and read_fields(), which throws Error(kUsage) for whatever is wrong with
// it whatever the model.
const Fields<Request>& request_fields();

// The short name of a dtype, as in JSON: fp32, bf16, fp16, or what libtorch calls it.
std::string dtype_name(at::ScalarType dtype);

// The wish with every choice made.
struct Settings {
  // Every field has its value but the scheduler and fields without effect.
  Request request;
  std::vector<std::string> warnings;  // for the user, before the run
  int64_t height = 0;                 // of the pictures, in pixels
  int64_t width = 0;
  int64_t model_height = 0;  // what the model paints before resizing, in pixels
  int64_t model_width = 0;
  int64_t latent_height = 0;
  int64_t latent_width = 0;
  int64_t steps = 0;
  double guidance = 0;
  int64_t max_sequence_length = 0;
  std::string scheduler;  // class name
  double guidance_rescale = 0;
  models::SizeConditions sizes = {};

  // The prompts of both branches of guidance for the request's prompt `index`.
  models::Prompt prompt(size_t index) const;
  models::Prompt negative_prompt(size_t index) const;

  bool guided() const { return guidance > 1.0; }
  // Pictures of the run, those of one prompt side by side.
  int64_t pictures() const {
    return static_cast<int64_t>(request.prompts.size()) * request.num_images_per_prompt;
  }
};

// Throws Error(kUsage), naming the field, its value and what would be valid. Draws a seed where there is
// none: of several ranks one is to call this, or all of them with a request that has one.
Settings resolve(const Request& request, const Model& model);

// What the rules of parallel layouts ask, of requests that are painted in one batch.
parallel::Workload workload(std::span<const Settings> batch, const Model& model);
parallel::Workload workload(const Settings& settings, const Model& model);

}  // namespace tessera::engine
