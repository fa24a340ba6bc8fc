// STDiT2, the transformer of Open-Sora 1.1: a block attends within frames, along them, and to the prompt.
// Weights and names are those of hpcai-tech/OpenSora-STDiT-v2.
//
// Shapes: B samples, T frames, n local tokens, C width.
#pragma once

#include "models/family.h"
#include "models/local_blocks.h"
#include "models/stdit/forward.h"

namespace tessera::models {

struct STDiT2Block {
  STDiT2Block(const weights::Scope& scope, const STDiTConfig& config);

  STDiTSelfAttention attn, attn_temp;
  nn::CrossAttention cross_attn;
  STDiTFeedForward mlp;
  at::Tensor scale_shift_table, scale_shift_table_temporal;  // [6, C] and [3, C], fp32
};

// `by_sample` of its ForwardInputs has "fps", "num_frames", "ar" (height divided by width), and the "height"
// and "width" of the video in pixels (positions take those of the first sample for all).
class STDiT2 final : public Denoiser {
 public:
  // Predicts `channels` of the STDiTConfig::out_channels() channels that the last layer has.
  STDiT2(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
         Range channels);

  std::unique_ptr<Forward> start(const ForwardInputs& inputs) const override;
  at::ScalarType dtype() const override { return ends_.dtype; }
  int64_t conditioning_width() const override { return ends_.config.caption_channels; }
  // Guides only the first three channels of the noise, as in the public code; the rest of the prediction
  // comes from the positive branch.
  at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const override;

 private:
  friend class STDiT2Forward;

  STDiTEnds ends_;
  STDiTNumberEmbedding fl_embedder_, csize_embedder_, ar_embedder_;
  ops::Linear t_block_, t_block_temp_;  // fp32
  Blocks<STDiT2Block> blocks_;
};

}  // namespace tessera::models
