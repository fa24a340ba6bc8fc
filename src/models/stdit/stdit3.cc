#include "models/stdit/stdit3.h"

#include <ATen/Functions.h>

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
    : ends_(scope, config, local_blocks, channels),
      t_block_(scope.with_dtype(at::kFloat) / "t_block" / 1, config.hidden_size, 6 * config.hidden_size),
      blocks_(local_blocks, [&](int64_t i) {
        return STDiT3Block{{scope / "spatial_blocks" / i, config, nn::Over::kSpatial},
                           {scope / "temporal_blocks" / i, config, nn::Over::kTemporal}};
      }) {}

class STDiT3Forward final : public STDiTForward {
 public:
  STDiT3Forward(const STDiT3& model, const ForwardInputs& inputs)
      : STDiTForward(model.ends_, inputs), model_(model) {
    for (const STDiT3Block& block : model.blocks_) {
      prompts_.add(block.spatial.cross_attn);
      prompts_.add(block.temporal.cross_attn);
    }
  }

  void begin(const Timestep& timestep) override {
    time_ = ends_.t_embedder(timestep.on_device) + fps_;
    modulation_ = modulation(model_.t_block_, time_);
    denoised_frames_ = timestep.denoised_frames;
    if (!denoised_frames_.defined()) return;
    time_of_given_ = time_of_zero(timestep) + fps_;
    modulation_of_given_ = modulation(model_.t_block_, time_of_given_);
  }

  void block(int64_t i, Hidden& hidden) override {
    const STDiT3Block& block = model_.blocks_[i];
    apply(block.spatial, hidden[0], {});
    apply(block.temporal, hidden[0], angles_);
  }

 private:
  void apply(const STDiT3HalfBlock& block, at::Tensor& x, const at::Tensor& angles) {
    // shift, scale and gate of the attention, then of the feed-forward
    const at::Tensor all = of_tokens(block.scale_shift_table, modulation_, modulation_of_given_);
    const auto part = [&](int64_t i) { return all.select(-2, i).contiguous(); };
    const at::Tensor normed = ops::modulated_layer_norm(x, part(1), part(0), kSTDiTEpsilon);
    ops::add_gated_(x, block.attn(normed, tokens_, block.over, angles), part(2));
    x += prompts_.attention(block.cross_attn, x);
    ops::add_gated_(x, block.mlp(ops::modulated_layer_norm(x, part(4), part(3), kSTDiTEpsilon)), part(5));
  }

  const STDiT3& model_;
  at::Tensor modulation_, modulation_of_given_;  // the step's, and that of timestep 0: fp32 [.., 6, C]
};

std::unique_ptr<Forward> STDiT3::start(const ForwardInputs& inputs) const {
  return std::make_unique<STDiT3Forward>(*this, inputs);
}

}  // namespace tessera::models
