// A denoiser stage runs this rank's blocks over the local tokens of some patches.
//
// Shapes: N pictures, n of them on this rank, B = n samples, or 2 n with both branches of guidance (negative
// first), C latent channels, h' local rows (T' local frames) of latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/family.h"
#include "parallel/pipefusion.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Returns how `ranks` divide the tokens of a picture.
parallel::Cut make_cut(const parallel::Ranks& ranks, const models::DenoiserShape& shape,
                       const models::LatentShape& latent_shape);

// The part of a workload that the model's shape and the size of the latents settle. The caller adds the
// steps, the pictures and whether they are guided.
parallel::Workload workload_of(const models::DenoiserShape& shape, const models::LatentShape& latent_shape);

// An axis of the grid as a dimension of latents [N, C, (T,) h, w]: the number of latent lines per line of
// tokens (the last line may have fewer), and the number of all latent lines.
struct LatentAxis {
  parallel::GridAxis axis;
  int64_t dim, lines, all;

  // Returns the lines of latents that belong to some lines of tokens.
  std::vector<Range> of(const std::vector<Range>& token_lines) const;
};

// A step of a run, counted from 0.
struct Step {
  int64_t index, count;
  models::Timestep timestep;
};

// While it lives, stages of this thread run only blocks for which `runs` is true and pass the input of other
// blocks on unchanged, for traces in which equal blocks are traced once (plan/sampled_trace.h). On a rank
// that is alone, `runs` may throw Cancelled.
class SampleBlocks {
 public:
  explicit SampleBlocks(std::function<bool(int64_t block)> runs);
  ~SampleBlocks();
  SampleBlocks(const SampleBlocks&) = delete;
  SampleBlocks& operator=(const SampleBlocks&) = delete;

  // Whether a stage of this thread runs the block.
  static bool runs(int64_t block);

 private:
  std::function<bool(int64_t)> runs_;
};

class DenoiserStage {
 public:
  // `prompt_of` is [B]. `prompts`, `latent_shape` and the denoiser, which holds this rank's blocks of
  // ranks.layout, must outlive the stage. `by_picture` has the numeric conditions by name: fp32 [N], or [1]
  // if it is the same for all pictures. `references` are as in models::ForwardInputs, but by picture: [N, C,
  // h', w'] or [1, ...].
  DenoiserStage(const models::Denoiser& denoiser, const models::DenoiserShape& shape,
                const std::vector<models::Conditioning>& prompts, std::vector<int64_t> prompt_of,
                const models::LatentShape& latent_shape, const parallel::Ranks& ranks,
                const std::map<std::string, at::Tensor>& by_picture = {},
                const std::vector<at::Tensor>& references = {});
  DenoiserStage(const DenoiserStage&) = delete;  // the forward refers to its members
  DenoiserStage& operator=(const DenoiserStage&) = delete;

  // `input` is latents [B, C, (T',) h', w] in fp32 on the first stage, and the output of the previous stage
  // on others. The last stage returns only the prediction of Forward::head(); other stages return the input
  // of the next one. All ranks of the sequence and tensor axes must make the same calls.
  parallel::Tensors run(const Step& step, Range patches, parallel::Tensors input);
  // Return uninitialised tensors shaped like such an input, and like an output for the next stage.
  parallel::Tensors empty_hidden(Range patches) const { return empty(patches, blocks_.begin); }
  parallel::Tensors empty_output(Range patches) const { return empty(patches, blocks_.end()); }

  // Ends a run before its last step. All ranks of the sequence axes must call this together.
  void drain() { tokens_.drain(); }

  const parallel::Cut& cut() const { return tokens_.cut(); }
  int64_t sequence_rank() const { return tokens_.rank(); }
  int64_t samples() const { return static_cast<int64_t>(prompt_of_.size()); }
  // Images have rows only.
  std::vector<LatentAxis> latent_axes() const;
  const models::Denoiser& denoiser() const { return denoiser_; }

 private:
  parallel::Tensors empty(Range patches, int64_t block) const;  // the input of the block
  bool is_first() const { return blocks_.begin == 0; }
  bool is_last() const { return blocks_.end() == all_blocks_; }

  const models::Denoiser& denoiser_;
  models::DenoiserShape shape_;
  const models::LatentShape& latent_shape_;
  at::TensorOptions options_;  // of hidden states
  Range blocks_;
  int64_t all_blocks_;
  std::vector<int64_t> prompt_of_;
  std::map<std::string, at::Tensor> by_sample_;
  std::vector<at::Tensor> references_;
  nn::Tokens tokens_;
  std::unique_ptr<models::Forward> forward_;
  int64_t step_ = -1;
};

}  // namespace tessera::engine
