#include "models/stdit/stdit3.h"

#include <ATen/Functions.h>

#include "nn/context.h"
#include "nn/rotary.h"
#include "ops/modulate.h"

namespace tessera::models {
STDiT3HalfBlock::STDiT3HalfBlock(const weights::Scope& scope, const STDiTConfig& config, nn::Over along)
    : attn(scope / "attn", config),
      cross_attn(read_stdit_cross_attention(scope / "cross_attn", config)),
      mlp(scope / "mlp", config),
      scale_shift_table(scope.with_dtype(at::kFloat).tensor("scale_shift_table", {6, config.hidden_size})),
      over(along) {}

STDiT3::STDiT3(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
               Range channels)
    : config_(config),
      t_embedder_(scope / "t_embedder", config.hidden_size),
      fps_embedder_(scope / "fps_embedder", config.hidden_size),
      t_block_(scope.with_dtype(at::kFloat) / "t_block" / 1, config.hidden_size, 6 * config.hidden_size),
      y_embedder_(scope / "y_embedder", config),
      blocks_(local_blocks,
              [&](int64_t i) {
                return STDiT3Block{{scope / "spatial_blocks" / i, config, nn::Over::kSpatial},
                                   {scope / "temporal_blocks" / i, config, nn::Over::kTemporal}};
              }),
      dtype_(scope.dtype()) {
  if (local_blocks.takes_latents()) x_embedder_.emplace(scope / "x_embedder", config);
  if (local_blocks.predicts()) final_layer_.emplace(scope / "final_layer", config, channels);
}

class STDiT3Forward final : public Forward {
 public:
  STDiT3Forward(const STDiT3& model, const ForwardInputs& inputs)
      : model_(model),
        latents_(inputs.latent_shape),
        tokens_(inputs.tokens),
        prompts_(model.y_embedder_(inputs.prompts), inputs.prompt_of),
        fps_(model.fps_embedder_(inputs.by_sample.at("fps"))) {
    positions_ =
        stdit_positions(model.config_, tokens_.grid(), inputs.by_sample).to(fps_.device()).to(model.dtype_);
    angles_ = nn::rotary_table({.frames = tokens_.grid().frames}, {.frames = model.config_.head_dim()},
                               fps_.device());
  }

  void begin(const Timestep& timestep) override {
    const auto modulation = [&](const at::Tensor& time) {  // [.., C] -> [.., 6, C]
      return model_.t_block_(at::silu(time)).unflatten(1, {6, model_.config_.hidden_size});
    };
    time_ = model_.t_embedder_(timestep.on_device) + fps_;
    modulation_ = modulation(time_);
    denoised_frames_ = timestep.denoised_frames;
    if (!denoised_frames_.defined()) return;
    time_of_given_ = model_.t_embedder_(at::zeros_like(timestep.on_device)) + fps_;
    modulation_of_given_ = modulation(time_of_given_);
  }

  Hidden embed(const at::Tensor& latents) override {
    return {(*model_.x_embedder_)(latents, positions_, tokens_)};
  }

  void block(int64_t i, Hidden& hidden) override {
    const STDiT3Block& block = model_.blocks_[i];
    apply(block.spatial, hidden[0], {});
    apply(block.temporal, hidden[0], angles_);
  }

  at::Tensor head(const Hidden& hidden) override {
    const at::Tensor patches =
        (*model_.final_layer_)(hidden[0], time_, time_of_given_, denoised_frames_, tokens_);
    return stdit_latents(patches, latents_, tokens_);
  }

  std::vector<Stream> streams(int64_t /*i*/) const override {
    return {{.width = model_.config_.hidden_size}};
  }

 private:
  void apply(const STDiT3HalfBlock& block, at::Tensor& x, const at::Tensor& angles) {
    const auto with_table = [&](const at::Tensor& modulation) {
      return modulation.defined() ? block.scale_shift_table + modulation : modulation;
    };
    // shift, scale and gate of the attention, then of the feed-forward
    const at::Tensor all =
        by_frame(with_table(modulation_), with_table(modulation_of_given_), denoised_frames_, tokens_);
    const auto part = [&](int64_t i) { return all.select(-2, i).contiguous(); };
    const at::Tensor normed = ops::modulated_layer_norm(x, part(1), part(0), kSTDiTEpsilon);
    ops::add_gated_(x, block.attn(normed, tokens_, block.over, angles), part(2));
    x += prompts_.attention(block.cross_attn, x);
    ops::add_gated_(x, block.mlp(ops::modulated_layer_norm(x, part(4), part(3), kSTDiTEpsilon)), part(5));
  }

  const STDiT3& model_;
  const LatentShape& latents_;
  nn::Tokens& tokens_;
  nn::Context prompts_;
  at::Tensor fps_, positions_, angles_;
  at::Tensor time_, modulation_;                    // the step's: fp32 [.., C] and [.., 6, C]
  at::Tensor time_of_given_, modulation_of_given_;  // those of timestep 0
  at::Tensor denoised_frames_;
};

std::unique_ptr<Forward> STDiT3::start(const ForwardInputs& inputs) const {
  return std::make_unique<STDiT3Forward>(*this, inputs);
}

}  // namespace tessera::models
