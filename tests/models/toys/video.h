// A toy for video (like Open-Sora and Latte, arXiv:2401.03048). Tokens are frames x rows x columns, and
// attention is spatial and temporal in turns. Queries and keys are normed across heads, patches have two rows
// and two columns, and each frame has its own time, which modulates the layers.
#pragma once

#include "nn/query_key_norm.h"
#include "nn/rotary.h"
#include "ops/modulate.h"
#include "tests/models/toys/toy.h"

namespace tessera::models::toys {

inline constexpr nn::PatchSize kVideoPatch{1, 2, 2};

struct VideoBlock {
  explicit VideoBlock(const weights::Scope& scope)
      : modulation(scope / "modulation", kWidth, 2 * kWidth),
        qkv(read_qkv(scope)),
        out(read_out(scope)),
        norm_q(scope / "norm_q", {kKeyHeads, kHeads / kKeyHeads * kDepth}, 1e-6),
        norm_k(scope / "norm_k", {kKeyHeads, kDepth}, 1e-6),
        feed_forward(scope / "ff") {}
  ops::Linear modulation;  // shift and scale
  nn::ColumnParallel qkv;
  nn::RowParallel out;
  nn::AcrossHeadsNorm norm_q, norm_k;
  FeedForward feed_forward;
};

struct VideoWeights {
  VideoWeights(const weights::Scope& scope, const LocalBlocks& local_blocks)
      : in(scope / "in", kChannels * kVideoPatch.size(), kWidth),
        prompt_in(scope / "prompt_in", kPrompt, kWidth),
        blocks(local_blocks, [&](int64_t i) { return VideoBlock(scope / "blocks" / i); }),
        out(scope / "out", kWidth, kChannels * kVideoPatch.size()) {}
  ops::Linear in, prompt_in;
  Blocks<VideoBlock> blocks;
  ops::Linear out;
};

class VideoForward final : public Forward {
 public:
  VideoForward(const VideoWeights& weights, const ForwardInputs& inputs)
      : weights_(weights),
        tokens_(inputs.tokens),
        prompt_(weights.prompt_in(inputs.of_samples("pooled")).unsqueeze(1)),  // [B, 1, C]
        frames_(at::arange(inputs.tokens.grid().frames, prompt_.options()).view({1, -1, 1})),
        angles_(
            nn::rotary_table(nn::grid_positions(inputs.tokens.grid()), {{4}, {2}, {2}}, prompt_.device())) {}

  // A frame's time depends on the step and the frame's number: [B, T, C].
  // Given frames have timestep 0.
  void begin(const Timestep& timestep) override {
    at::Tensor time = at::cos(frames_ + timestep.value);
    if (timestep.denoised_frames.defined())
      time = at::where(timestep.denoised_frames.unsqueeze(-1), time, at::cos(frames_));
    times_ = prompt_ * time;
  }
  Hidden embed(const at::Tensor& latents) override {
    return {weights_.in(nn::patchify(latents, kVideoPatch))};
  }
  void block(int64_t i, Hidden& hidden) override {
    const VideoBlock& block = weights_.blocks[i];
    at::Tensor& x = hidden[0];
    const std::vector<at::Tensor> shift_scale = block.modulation(tokens_.local_frames(times_, 1)).chunk(2, 2);
    const at::Tensor modulated = ops::modulated_layer_norm(x, shift_scale[1], shift_scale[0], 1e-6);
    const std::vector<at::Tensor> parts = block.qkv.each(modulated);
    const at::Tensor angles = tokens_.local(angles_, 0);
    const nn::QueriesKeysValues own{nn::rotate(block.norm_q(parts[0]), angles),
                                    nn::rotate(block.norm_k(parts[1]), angles), parts[2]};
    const nn::Over over = i % 3 == 2 ? nn::Over::kAll : i % 3 == 0 ? nn::Over::kSpatial : nn::Over::kTemporal;
    x = x + block.out(tokens_.attention(own, kDepth, over));
    x = x + block.feed_forward(normed(x));
  }
  at::Tensor head(const Hidden& hidden) override {
    return nn::unpatchify(weights_.out(normed(hidden[0])), tokens_.held(), kVideoPatch);
  }
  std::vector<Stream> streams(int64_t /*i*/) const override { return {{.width = kWidth}}; }

 private:
  const VideoWeights& weights_;
  nn::Tokens& tokens_;
  at::Tensor prompt_, frames_, angles_, times_;
};

using Video = ToyDenoiser<VideoWeights, VideoForward>;

}  // namespace tessera::models::toys
