#include "models/stdit/forward.h"

#include <ATen/Functions.h>

#include "nn/rotary.h"

namespace tessera::models {

STDiTEnds::STDiTEnds(const weights::Scope& scope, const STDiTConfig& config, const LocalBlocks& local_blocks,
                     Range channels)
    : config(config),
      t_embedder(scope / "t_embedder", config.hidden_size),
      fps_embedder(scope / "fps_embedder", config.hidden_size),
      y_embedder(scope / "y_embedder", config),
      dtype(scope.dtype()) {
  if (local_blocks.takes_latents()) x_embedder.emplace(scope / "x_embedder", config);
  if (local_blocks.predicts()) final_layer.emplace(scope / "final_layer", config, channels);
}

STDiTForward::STDiTForward(const STDiTEnds& ends, const ForwardInputs& inputs)
    : ends_(ends),
      latents_(inputs.latent_shape),
      tokens_(inputs.tokens),
      prompts_(ends.y_embedder(inputs.prompts), inputs.prompt_of),
      fps_(ends.fps_embedder(inputs.by_sample.at("fps"))) {
  const parallel::Grid& grid = tokens_.grid();
  positions_ = stdit_positions(ends.config, grid, inputs.by_sample).to(fps_.device()).to(ends.dtype);
  const at::Tensor frames = at::arange(grid.frames, at::kDouble).unsqueeze(1);
  angles_ = nn::rotary_table(frames, {{ends.config.head_dim()}}, fps_.device());
}

Hidden STDiTForward::embed(const at::Tensor& latents) {
  return {(*ends_.x_embedder)(latents, positions_, tokens_)};
}

at::Tensor STDiTForward::head(const Hidden& hidden) {
  const at::Tensor patches =
      (*ends_.final_layer)(hidden[0], time_, time_of_given_, denoised_frames_, tokens_);
  return stdit_latents(patches, latents_, tokens_);
}

std::vector<Stream> STDiTForward::streams(int64_t /*i*/) const {
  return {{.width = ends_.config.hidden_size}};
}

at::Tensor STDiTForward::modulation(const ops::Linear& layer, const at::Tensor& time) {
  return layer(at::silu(time)).unflatten(1, {-1, time.size(1)});
}

at::Tensor STDiTForward::of_tokens(const at::Tensor& table, const at::Tensor& denoised,
                                   const at::Tensor& given) const {
  return by_frame(table + denoised, given.defined() ? table + given : given, denoised_frames_, tokens_);
}

at::Tensor STDiTForward::time_of_zero(const Timestep& timestep) const {
  if (!timestep.denoised_frames.defined()) return {};
  return ends_.t_embedder(at::zeros_like(timestep.on_device));
}

}  // namespace tessera::models
