// A denoiser on this rank: the blocks of its stage, over the tokens that it holds of the patches at hand.
//
// Shapes: N pictures, n of them this rank's, B = n samples, or 2 n with both branches of guidance (negative
// ones first), C latent channels, h' rows (T' frames) of latents at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "models/family.h"
#include "parallel/pipefusion.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// How `ranks` share the tokens of a picture.
parallel::Cut make_cut(const parallel::Ranks& ranks, const models::DenoiserShape& shape,
                       const models::LatentShape& latent_shape);

// Where the cut axis lies in latents [N, C, (T,) h, w], and how many of their lines are one of tokens.
struct LatentAxis {
  int64_t dim, lines;
};

// One of a run, counted from 0.
struct Step {
  int64_t index, count;
  models::Timestep timestep;
};

class DenoiserStage {
 public:
  // `prompt_of` [B]. `prompts`, `latent_shape` and the denoiser, which holds ranks.layout's blocks of this
  // rank, must outlive the stage.
  DenoiserStage(const models::Denoiser& denoiser, const models::DenoiserShape& shape,
                const std::vector<models::Conditioning>& prompts, std::vector<int64_t> prompt_of,
                const models::LatentShape& latent_shape, const parallel::Ranks& ranks);
  DenoiserStage(const DenoiserStage&) = delete;  // what runs in it refers to its members
  DenoiserStage& operator=(const DenoiserStage&) = delete;

  // `input`: on the first stage latents [B, C, (T',) h', w], fp32, else what the stage before gave. The last
  // stage gives the prediction alone, fp32, like the latents; others what flows to the next one. All ranks of
  // the sequence and tensor axes must call this alike.
  parallel::Tensors run(const Step& step, Range patches, parallel::Tensors input);
  // Uninitialised, of the shapes of such an input; of an output that flows to the next stage.
  parallel::Tensors empty_hidden(Range patches) const { return empty(patches, blocks_.begin); }
  parallel::Tensors empty_output(Range patches) const { return empty(patches, blocks_.end()); }

  // Where a run ends before its last step. All ranks of the sequence axes must call this alike.
  void drain() { tokens_.drain(); }

  const parallel::Cut& cut() const { return tokens_.cut(); }
  int64_t sequence_rank() const { return tokens_.rank(); }
  int64_t samples() const { return static_cast<int64_t>(prompt_of_.size()); }
  LatentAxis latent_axis() const;
  const models::Denoiser& denoiser() const { return denoiser_; }

 private:
  parallel::Tensors empty(Range patches, int64_t block) const;  // what flows into the block
  bool is_first() const { return blocks_.begin == 0; }
  bool is_last() const { return blocks_.end() == all_blocks_; }

  const models::Denoiser& denoiser_;
  models::DenoiserShape shape_;
  at::TensorOptions options_;  // of hidden states
  Range blocks_;
  int64_t all_blocks_;
  std::vector<int64_t> prompt_of_;
  nn::Tokens tokens_;
  std::unique_ptr<models::Forward> forward_;
  int64_t step_ = -1;
};

}  // namespace tessera::engine
