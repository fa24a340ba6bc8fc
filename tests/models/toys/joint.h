// A toy with two streams (like SD3, arXiv:2403.03206, and FLUX). Text and picture have separate weights and
// attend jointly. Queries and keys are normed per head, and those of the picture get rotary positions. A
// pooled vector of each sample's prompt and the timestep modulate the layers.
#pragma once

#include "nn/query_key_norm.h"
#include "nn/rotary.h"
#include "ops/modulate.h"
#include "tests/models/toys/toy.h"

namespace tessera::models::toys {

struct JointSide {
  explicit JointSide(const weights::Scope& scope)
      : qkv(read_qkv(scope)),
        out(read_out(scope)),
        norm_q(scope / "norm_q", kDepth, 1e-6),
        norm_k(scope / "norm_k", kDepth, 1e-6),
        feed_forward(scope / "ff") {}

  nn::QueriesKeysValues queries_keys_values(const at::Tensor& x) const {
    const std::vector<at::Tensor> parts = qkv.each(x);
    return {norm_q(parts[0]), norm_k(parts[1]), parts[2]};
  }

  nn::ColumnParallel qkv;
  nn::RowParallel out;
  nn::HeadNorm norm_q, norm_k;
  FeedForward feed_forward;
};

struct JointBlock {
  explicit JointBlock(const weights::Scope& scope)
      : modulation(scope / "modulation", kWidth, 3 * kWidth), image(scope / "image"), text(scope / "text") {}
  ops::Linear modulation;  // shift, scale and gate of the picture's attention
  JointSide image, text;
};

struct JointWeights {
  JointWeights(const weights::Scope& scope, const LocalBlocks& local_blocks)
      : image_in(scope / "image_in", kChannels, kWidth),
        text_in(scope / "text_in", kPrompt, kWidth),
        pooled_in(scope / "pooled_in", kPrompt, kWidth),
        blocks(local_blocks, [&](int64_t i) { return JointBlock(scope / "blocks" / i); }),
        out(scope / "out", kWidth, kChannels) {}
  ops::Linear image_in, text_in, pooled_in;
  Blocks<JointBlock> blocks;
  ops::Linear out;
};

class JointForward final : public Forward {
 public:
  JointForward(const JointWeights& weights, const ForwardInputs& inputs)
      : weights_(weights),
        tokens_(inputs.tokens),
        prompts_(inputs.sequences_of_samples(kTokens)),
        text_(weights.text_in(prompts_.tokens)),
        pooled_(weights.pooled_in(inputs.of_samples("pooled"))),
        angles_(nn::rotary_table(nn::grid_positions(inputs.tokens.grid()), {{0}, {4}, {4}}, text_.device())) {
  }

  void begin(const Timestep& timestep) override { time_ = pooled_ * std::cos(timestep.value); }
  Hidden embed(const at::Tensor& latents) override {
    return {weights_.image_in(nn::patchify(latents, {})), tokens_.local_other(text_, prompts_.lengths)};
  }
  void block(int64_t i, Hidden& hidden) override {
    const JointBlock& block = weights_.blocks[i];
    at::Tensor &image = hidden[0], &text = hidden[1];
    const std::vector<at::Tensor> shift_scale_gate = block.modulation(time_).chunk(3, 1);  // [B, C] each
    const at::Tensor modulated =
        ops::modulated_layer_norm(image, shift_scale_gate[1], shift_scale_gate[0], 1e-6);
    nn::QueriesKeysValues own = block.image.queries_keys_values(modulated);
    own.q = nn::rotate(own.q, tokens_.local(angles_, 0));
    own.k = nn::rotate(own.k, tokens_.local(angles_, 0));
    const auto [of_image, of_text] =
        tokens_.joint_attention(own, block.text.queries_keys_values(normed(text)), prompts_.lengths, kDepth);
    ops::add_gated_(image, block.image.out(of_image), shift_scale_gate[2]);
    text = text + block.text.out(of_text);
    image = image + block.image.feed_forward(normed(image));
    text = text + block.text.feed_forward(normed(text));
  }
  at::Tensor head(const Hidden& hidden) override {
    return nn::unpatchify(weights_.out(normed(hidden[0])), tokens_.held(), {}).squeeze(2);
  }
  std::vector<Stream> streams(int64_t /*i*/) const override {
    return {{.width = kWidth}, {.width = kWidth, .others = {prompts_.lengths}}};
  }

 private:
  const JointWeights& weights_;
  nn::Tokens& tokens_;
  Sequences prompts_;
  at::Tensor text_, pooled_, angles_, time_;
};

using Joint = ToyDenoiser<JointWeights, JointForward>;

}  // namespace tessera::models::toys
