// Lists the toy families, each with a grid that no number of ranks divides, prompts and the oracle's result.
#pragma once

#include "tests/models/toys/double_single.h"
#include "tests/models/toys/joint.h"
#include "tests/models/toys/naive.h"
#include "tests/models/toys/skips.h"
#include "tests/models/toys/video.h"

namespace tessera::models::toys {

struct Toy {
  std::string name;
  naive::Evaluate evaluate;
  std::unique_ptr<Denoiser> (*load)(const weights::Scope&, const LocalBlocks&);
  int64_t frames, rows, columns;
  nn::PatchSize patch = {};
  bool is_video = false;
  std::vector<int64_t> prompt_lengths = {3, 7, 5};  // negative, and two prompts
  bool takes_guidance_scale = false;
  Family (*family)() = nullptr;  // for those that are whole

  DenoiserShape shape() const {
    return {.heads = kKeyHeads,
            .blocks = kBlocks,
            .latent_channels = kChannels,
            .patch = patch,
            .is_video = is_video,
            .takes_guidance_scale = takes_guidance_scale};
  }
  at::Tensor noise(int64_t pictures) const {
    std::vector<int64_t> size = {pictures, kChannels, frames, rows * patch.rows, columns * patch.columns};
    if (!is_video) size.erase(size.begin() + 2);
    return at::randn(size, at::detail::createCPUGenerator(3));
  }
  LatentShape latent_shape() const {
    return {
        .latent_height = rows * patch.rows, .latent_width = columns * patch.columns, .latent_frames = frames};
  }
  std::vector<Conditioning> prompts() const {
    auto generator = at::detail::createCPUGenerator(4);
    std::vector<Conditioning> all;
    for (const int64_t length : prompt_lengths) {
      all.push_back(
          {{kTokens, at::randn({length, kPrompt}, generator)}, {"pooled", at::randn({kPrompt}, generator)}});
    }
    return all;
  }
};

template <typename Family>
std::unique_ptr<Denoiser> load_toy(const weights::Scope& scope, const LocalBlocks& local_blocks) {
  return std::make_unique<Family>(scope, local_blocks);
}

inline const std::vector<Toy>& all_toys() {
  static const std::vector<Toy> toys = {
      {"Joint", naive::joint, load_toy<Joint>, 1, 13, 3},
      // The cut goes along frames because there are too few rows.
      {"Video", naive::video, load_toy<Video>, 11, 5, 2, kVideoPatch, true},
      {"Skips", naive::skips, load_toy<Skips>, 1, 11, 3, {}, false, {4, 1, 7}},
      {"DoubleSingle",
       naive::double_single,
       load_double_single,
       1,
       11,
       5,
       {},
       false,
       {3, 7, 5},
       true,
       double_single_family},
  };
  return toys;
}

}  // namespace tessera::models::toys
