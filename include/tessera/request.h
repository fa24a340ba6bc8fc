// What a run should generate.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/api.h"

namespace tessera {

// Text encoders of a model that have prompts of their own, besides the first.
inline constexpr size_t kOtherPrompts = 1;

enum class OutputType { kImage, kLatent };

// Two numbers of pixels: height and width, or top and left.
struct Pair {
  int64_t first = 0, second = 0;
  bool operator==(const Pair&) const = default;
};

// What a video request asks for. The model chooses whatever is left out.
struct VideoRequest {
  std::optional<int64_t> num_frames;
  std::optional<double> fps;
  std::optional<int64_t> frame_interval;                // the file shows one of every so many frames of that
                                                        // rate
  std::optional<std::string> resolution, aspect_ratio;  // names of sizes, instead of height and width
  std::optional<double> aesthetic_score, motion_score;  // 0: none
  std::optional<std::string> camera_motion;
  // Paths of images and videos (those of one prompt are separated by ";"), and the frames of them that the
  // video uses ("loop,reference,reference_start,target_start,length,edit"; docs/video.md): none, one text for
  // all prompts, or one for each.
  std::vector<std::string> reference_paths, mask_strategies;
  std::optional<int64_t> loop;  // parts of a long video; each begins with the end of the previous one
  std::optional<int64_t> condition_frame_length;  // latent frames of that end
  // 0 keeps those frames; up to 1, the share of the noise from which they are denoised again.
  std::optional<double> condition_frame_edit;
  std::optional<int64_t> align;  // given frames move to multiples of this; 0: they stay where they are
};

// Names and meanings are those of the pipelines of diffusers; `tessera generate --help` lists the values that
// each field takes. The engine chooses whatever is left out.
struct Request {
  std::vector<std::string> prompts;  // UTF-8; at least one, each may be empty
  // For the second text encoder and those after it: for each, no prompt, one for all, or one for each image
  // prompt.
  std::array<std::vector<std::string>, kOtherPrompts> other_prompts;
  std::vector<std::string> negative_prompts;  // as for the other text encoders
  std::array<std::vector<std::string>, kOtherPrompts> other_negative_prompts;
  // Picture files that the images refer to, and the size of each as "HEIGHTxWIDTH", by default that of the
  // file. Sizes alone are enough for a plan.
  std::vector<std::string> images, image_sizes;
  std::optional<int64_t> height;  // in pixels; default: that of the first reference picture, or the model's
  std::optional<int64_t> width;
  std::optional<int64_t> num_inference_steps;
  // At 1 and below (Z-Image: at 0) only the positive branch is computed, except by models that take the scale
  // as an input.
  std::optional<double> guidance_scale;
  // Interpolates the deviation of the guided prediction towards that of the positive branch
  // (arXiv:2305.08891), 0 to 1.
  std::optional<double> guidance_rescale;
  std::optional<double> cfg_normalization, cfg_truncation;  // of Z-Image
  std::optional<bool> clean_caption;
  std::optional<int64_t> clip_skip;
  std::optional<Pair> original_size, target_size, crops_coords_top_left;
  std::optional<uint64_t> seed;  // default: random
  int64_t num_images_per_prompt = 1;
  std::optional<std::string> scheduler;        // default: the model's
  std::vector<std::string> scheduler_options;  // of the scheduler's class, as "KEY=VALUE"
  std::optional<double> eta;                   // only some samplers have it
  std::optional<int64_t> max_sequence_length;
  bool vae_tiling = false;  // decode tile by tile
  // How many rows a convolution of the decoder computes at a time where it copies its input; by default, this
  // is chosen by the machine's memory.
  std::optional<int64_t> vae_block_size;
  // Generate at the nearest training size, then resize and crop.
  std::optional<bool> resolution_binning;
  VideoRequest video;
  OutputType output_type = OutputType::kImage;
  c10::Device device = c10::DeviceType::CPU;
  // Default: bf16 where the device multiplies it in hardware, else fp32.
  std::optional<c10::ScalarType> dtype;
};

// Reads a request from a JSON object with the fields of `tessera generate` (docs/formats.md): {"prompt": "a
// cat", "seed": 1}. Throws Error(kUsage) for a field that is unknown, of another type or out of range.
TESSERA_API Request read_request(std::string_view json);

// Returns such a JSON object, without the fields that are left out.
TESSERA_API std::string write_request(const Request& request);

}  // namespace tessera
