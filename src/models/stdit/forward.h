// What the transformers of Open-Sora 1.1 and 1.2 share apart from their blocks: everything before the first
// block and after the last.
//
// Shapes: B samples, T frames, n local tokens, C width, k vectors of a modulation.
#pragma once

#include <optional>

#include "models/local_blocks.h"
#include "models/stdit/layers.h"
#include "nn/context.h"

namespace tessera::models {

struct STDiTEnds {
  // Predicts `channels` of the STDiTConfig::out_channels() channels that the last layer has.
  STDiTEnds(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
            Range channels);

  STDiTConfig config;
  STDiTNumberEmbedding t_embedder, fps_embedder;
  STDiTText y_embedder;
  std::optional<STDiTEmbedding> x_embedder;    // only with the first block
  std::optional<STDiTFinalLayer> final_layer;  // only with the last block
  at::ScalarType dtype;
};

class STDiTForward : public Forward {
 public:
  // `inputs.by_sample` has "fps", and the "height" and "width" of the video in pixels.
  STDiTForward(const STDiTEnds& ends, const ForwardInputs& inputs);

  Hidden embed(const at::Tensor& latents) override;
  at::Tensor head(const Hidden& hidden) override;
  std::vector<Stream> streams(int64_t i) const override;

 protected:
  // Turns time [.., C] into its modulation [.., k, C] with a layer C -> k * C.
  static at::Tensor modulation(const ops::Linear& layer, const at::Tensor& time);
  // Modulations of the denoised and of the given frames, with a block's table [k, C], expanded to
  // tokens (by_frame()).
  at::Tensor of_tokens(const at::Tensor& table, const at::Tensor& denoised, const at::Tensor& given) const;
  // The time of given frames, which is timestep 0; undefined without such frames.
  at::Tensor time_of_zero(const Timestep& timestep) const;

  const STDiTEnds& ends_;
  const LatentShape& latents_;
  nn::Tokens& tokens_;
  nn::Context prompts_;
  at::Tensor fps_, positions_, angles_;
  at::Tensor time_, time_of_given_;  // the step's, for the last layer: fp32 [.., C]
  at::Tensor denoised_frames_;
};

}  // namespace tessera::models
