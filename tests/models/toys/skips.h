// A toy with long skips (like U-ViT, arXiv:2209.12152, and Hunyuan-DiT, arXiv:2405.08748): the second half of
// the blocks takes the outputs of the first half in reverse order. Each block has self-attention twice and
// cross-attention to prompts of any length.
#pragma once

#include "nn/cross_attention.h"
#include "tests/models/toys/toy.h"

namespace tessera::models::toys {

struct SkipAttention {
  explicit SkipAttention(const weights::Scope& scope) : qkv(read_qkv(scope)), out(read_out(scope)) {}
  at::Tensor operator()(const at::Tensor& x, nn::Tokens& tokens) const {
    const std::vector<at::Tensor> parts = qkv.each(normed(x));
    return out(tokens.attention({parts[0], parts[1], parts[2]}, kDepth));
  }
  nn::ColumnParallel qkv;
  nn::RowParallel out;
};

struct SkipBlock {
  SkipBlock(const weights::Scope& scope, bool takes_skip)
      : first(scope / "first"),
        second(scope / "second"),
        cross(scope / "cross", kWidth, kPrompt, kHeads, kDepth, kPlain),
        feed_forward(scope / "ff") {
    if (takes_skip) skip.emplace(scope / "skip", 2 * kWidth, kWidth);
  }
  SkipAttention first, second;
  nn::CrossAttention cross;
  FeedForward feed_forward;
  std::optional<ops::Linear> skip;
};

struct SkipWeights {
  SkipWeights(const weights::Scope& scope, const LocalBlocks& local_blocks)
      : in(scope / "in", kChannels, kWidth),
        blocks(local_blocks, [&](int64_t i) { return SkipBlock(scope / "blocks" / i, 2 * i >= kBlocks); }),
        out(scope / "out", kWidth, kChannels) {}
  ops::Linear in;
  Blocks<SkipBlock> blocks;
  ops::Linear out;
};

class SkipForward final : public Forward {
 public:
  SkipForward(const SkipWeights& weights, const ForwardInputs& inputs)
      : weights_(weights), prompt_of_(inputs.prompt_of), tokens_(inputs.tokens) {
    for (const SkipBlock& block : weights.blocks) {
      auto& of_block = keys_values_.emplace_back();
      for (const Conditioning& prompt : inputs.prompts)
        of_block.push_back(block.cross.keys_values(prompt.at(kTokens).unsqueeze(0)));
    }
  }

  void begin(const Timestep& timestep) override { time_ = std::cos(timestep.value); }
  Hidden embed(const at::Tensor& latents) override {
    return {weights_.in(nn::patchify(latents, {})) + time_};
  }
  void block(int64_t i, Hidden& hidden) override {
    const SkipBlock& block = weights_.blocks[i];
    at::Tensor x = hidden[0];
    if (block.skip) {
      x = (*block.skip)(at::concat({x, hidden.back()}, 2));
      hidden.pop_back();
    }
    x = x + block.first(x, tokens_);
    x = x +
        block.cross(normed(x), keys_values_[static_cast<size_t>(i - weights_.blocks.first())], prompt_of_);
    x = x + block.second(x, tokens_);
    hidden[0] = x + block.feed_forward(normed(x));
    if (!block.skip) hidden.push_back(hidden[0]);
  }
  at::Tensor head(const Hidden& hidden) override {
    return nn::unpatchify(weights_.out(normed(hidden[0])), tokens_.held(), {}).squeeze(2);
  }
  std::vector<Stream> streams(int64_t i) const override {
    return std::vector<Stream>(static_cast<size_t>(1 + std::min(i, kBlocks - i)), {.width = kWidth});
  }

 private:
  const SkipWeights& weights_;
  at::ArrayRef<int64_t> prompt_of_;
  nn::Tokens& tokens_;
  std::vector<std::vector<at::Tensor>> keys_values_;
  double time_ = 0;
};

using Skips = ToyDenoiser<SkipWeights, SkipForward>;

}  // namespace tessera::models::toys
