#include "models/stdit/stdit2.h"

#include <ATen/Functions.h>

#include "ops/modulate.h"

namespace tessera::models {

STDiT2Block::STDiT2Block(const weights::Scope& scope, const STDiTConfig& config)
    : attn(scope / "attn", config),
      attn_temp(scope / "attn_temp", config),
      cross_attn(read_stdit_cross_attention(scope / "cross_attn", config)),
      mlp(scope / "mlp", config),
      scale_shift_table(scope.with_dtype(at::kFloat).tensor("scale_shift_table", {6, config.hidden_size})),
      scale_shift_table_temporal(
          scope.with_dtype(at::kFloat).tensor("scale_shift_table_temporal", {3, config.hidden_size})) {}

STDiT2::STDiT2(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
               Range channels)
    : ends_(scope, config, local_blocks, channels),
      fl_embedder_(scope / "fl_embedder", config.hidden_size),
      csize_embedder_(scope / "csize_embedder", config.hidden_size / 3),
      ar_embedder_(scope / "ar_embedder", config.hidden_size / 3),
      t_block_(scope.with_dtype(at::kFloat) / "t_block" / 1, config.hidden_size, 6 * config.hidden_size),
      t_block_temp_(scope.with_dtype(at::kFloat) / "t_block_temp" / 1, config.hidden_size,
                    3 * config.hidden_size),
      blocks_(local_blocks, [&](int64_t i) { return STDiT2Block(scope / "blocks" / i, config); }) {}

class STDiT2Forward final : public STDiTForward {
 public:
  STDiT2Forward(const STDiT2& model, const ForwardInputs& inputs)
      : STDiTForward(model.ends_, inputs), model_(model) {
    const auto& numbers = inputs.by_sample;
    size_ = at::concat({model.csize_embedder_(numbers.at("height")),
                        model.csize_embedder_(numbers.at("width")), model.ar_embedder_(numbers.at("ar"))},
                       1);
    length_ = model.fl_embedder_(numbers.at("num_frames")) + fps_;
    for (const STDiT2Block& block : model.blocks_) prompts_.add(block.cross_attn);
  }

  void begin(const Timestep& timestep) override {
    denoised_frames_ = timestep.denoised_frames;
    time_ = ends_.t_embedder(timestep.on_device);
    spatial_ = modulation(model_.t_block_, time_ + size_);
    temporal_ = modulation(model_.t_block_temp_, time_ + length_);
    if (!denoised_frames_.defined()) return;
    const at::Tensor zero = time_of_zero(timestep);
    // The last layer adds the size only to this time, as in the public code.
    time_of_given_ = zero + size_;
    spatial_of_given_ = modulation(model_.t_block_, time_of_given_);
    temporal_of_given_ = modulation(model_.t_block_temp_, zero + length_);
  }

  void block(int64_t i, Hidden& hidden) override {
    const STDiT2Block& block = model_.blocks_[i];
    at::Tensor& x = hidden[0];
    // shift, scale and gate of the attention, then of the feed-forward
    const at::Tensor spatial = of_tokens(block.scale_shift_table, spatial_, spatial_of_given_);
    const at::Tensor temporal = of_tokens(block.scale_shift_table_temporal, temporal_, temporal_of_given_);
    const auto part = [](const at::Tensor& all, int64_t j) { return all.select(-2, j).contiguous(); };
    const auto normed = [&](const at::Tensor& all, int64_t first) {
      return ops::modulated_layer_norm(x, part(all, first + 1), part(all, first), kSTDiTEpsilon);
    };
    ops::add_gated_(x, block.attn(normed(spatial, 0), tokens_, nn::Over::kSpatial, {}), part(spatial, 2));
    ops::add_gated_(x, block.attn_temp(normed(temporal, 0), tokens_, nn::Over::kTemporal, angles_),
                    part(temporal, 2));
    x += prompts_.attention(block.cross_attn, x);
    ops::add_gated_(x, block.mlp(normed(spatial, 3)), part(spatial, 5));
  }

 private:
  const STDiT2& model_;
  at::Tensor size_, length_;       // added for the size, and for the length in frames and seconds: [.., C]
  at::Tensor spatial_, temporal_;  // the step's: fp32 [.., 6, C] and [.., 3, C]
  at::Tensor spatial_of_given_, temporal_of_given_;  // those of timestep 0
};

std::unique_ptr<Forward> STDiT2::start(const ForwardInputs& inputs) const {
  return std::make_unique<STDiT2Forward>(*this, inputs);
}

at::Tensor STDiT2::guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const {
  constexpr int64_t kGuided = 3;
  at::Tensor guided = positive.clone();
  const at::Tensor base = negative.narrow(1, 0, kGuided);
  guided.narrow(1, 0, kGuided).copy_(base + scale * (positive.narrow(1, 0, kGuided) - base));
  return guided;
}

}  // namespace tessera::models
