// STDiT3, the transformer of Open-Sora 1.2: each block attends within frames, then along them. Weights and
// names are those of hpcai-tech/OpenSora-STDiT-v3.
//
// Shapes: B samples, T frames, n local tokens, C width.
#pragma once

#include "models/family.h"
#include "models/local_blocks.h"
#include "models/stdit/forward.h"

namespace tessera::models {

// Attention within frames (or along them), attention to the prompt, and a feed-forward.
struct STDiT3HalfBlock {
  STDiT3HalfBlock(const weights::Scope& scope, const STDiTConfig& config, nn::Over along);

  STDiTSelfAttention attn;
  nn::CrossAttention cross_attn;
  STDiTFeedForward mlp;
  at::Tensor scale_shift_table;  // [6, C] fp32
  nn::Over over;
};

struct STDiT3Block {
  STDiT3HalfBlock spatial, temporal;
};

// `by_sample` of its ForwardInputs has "fps", and the "height" and "width" of the video in pixels (of the
// first sample for all).
class STDiT3 final : public Denoiser {
 public:
  // Predicts `channels` of the STDiTConfig::out_channels() channels that the last layer has.
  STDiT3(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
         Range channels);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return ends_.dtype; }
  int64_t conditioning_width() const override { return ends_.config.caption_channels; }

 private:
  friend class STDiT3Forward;

  STDiTEnds ends_;
  ops::Linear t_block_;  // fp32
  Blocks<STDiT3Block> blocks_;
};

}  // namespace tessera::models
