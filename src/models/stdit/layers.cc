#include "models/stdit/layers.h"

#include <ATen/Functions.h>

#include <cmath>

#include "nn/embeddings.h"
#include "nn/rotary.h"
#include "ops/modulate.h"

namespace tessera::models {
namespace {

constexpr int64_t kNumberChannels = 256;

at::Tensor learned_text(const weights::Scope& scope, const STDiTConfig& config) {
  const int64_t stored = config.stored_text_length, wanted = config.model_max_length;
  const at::Tensor text = scope.tensor("y_embedding", {stored, config.caption_channels});
  if (stored >= wanted) return text.narrow(0, 0, wanted);
  return at::concat({text, text.narrow(0, stored - 1, 1).expand({wanted - stored, -1})});
}

}  // namespace

STDiTNumberEmbedding::STDiTNumberEmbedding(const weights::Scope& scope, int64_t width)
    : linear_1(scope.with_dtype(at::kFloat) / "mlp" / 0, kNumberChannels, width),
      linear_2(scope.with_dtype(at::kFloat) / "mlp" / 2, width, width),
      device(scope.device()) {}

at::Tensor STDiTNumberEmbedding::operator()(const at::Tensor& numbers) const {
  const at::Tensor x = nn::sinusoidal_embedding(numbers.to(device), kNumberChannels);
  return linear_2(linear_1(x, ops::Activation::kSilu));
}

STDiTSelfAttention::STDiTSelfAttention(const weights::Scope& scope, const STDiTConfig& config)
    : depth_(config.head_dim()), rotates_first_(config.qk_norm_legacy) {
  const nn::Split heads{config.num_heads, depth_};
  const int64_t width = config.hidden_size;
  std::vector<nn::ColumnParallel::Layer> layers;
  for (int64_t i = 0; i < 3; ++i) layers.push_back({scope / "qkv", heads, i * width, 3 * width});
  qkv_ = nn::ColumnParallel(layers, width);
  proj_ = nn::RowParallel(scope / "proj", heads, width);
  if (!config.qk_norm) return;
  q_norm_.emplace(scope / "q_norm", depth_, kSTDiTEpsilon);
  k_norm_.emplace(scope / "k_norm", depth_, kSTDiTEpsilon);
}

at::Tensor STDiTSelfAttention::prepared(const at::Tensor& x, const std::optional<nn::HeadNorm>& norm,
                                        const at::Tensor& angles) const {
  if (norm) return (*norm)(x, angles, rotates_first_);
  return angles.defined() ? nn::rotate(x, angles) : x;
}

at::Tensor STDiTSelfAttention::operator()(const at::Tensor& x, nn::Tokens& tokens, nn::Over over,
                                          const at::Tensor& angles) const {
  const auto in = [this](const at::Tensor& y, const at::Tensor& of_tokens) -> nn::QueriesKeysValues {
    const std::vector<at::Tensor> qkv = qkv_.each(y);
    return {prepared(qkv[0], q_norm_, of_tokens), prepared(qkv[1], k_norm_, of_tokens), qkv[2]};
  };
  const auto out = [this](const at::Tensor& y) { return proj_(y); };
  return tokens.axial_attention(x, depth_, over, angles, {in, out});
}

nn::CrossAttention read_stdit_cross_attention(const weights::Scope& scope, const STDiTConfig& config) {
  const int64_t width = config.hidden_size, depth = config.head_dim();
  const nn::Split heads{config.num_heads, depth};
  const std::vector<nn::ColumnParallel::Layer> keys_values = {{scope / "kv_linear", heads, 0, 2 * width},
                                                              {scope / "kv_linear", heads, width, 2 * width}};
  return {nn::ColumnParallel(scope / "q_linear", width, heads), nn::ColumnParallel(keys_values, width),
          nn::RowParallel(scope / "proj", heads, width), depth};
}

STDiTFeedForward::STDiTFeedForward(const weights::Scope& scope, const STDiTConfig& config)
    : fc1(scope / "fc1", config.hidden_size, {config.mlp_width, 1}),
      fc2(scope / "fc2", {config.mlp_width, 1}, config.hidden_size) {}

at::Tensor STDiTFeedForward::operator()(const at::Tensor& x) const {
  return fc2(fc1(x, ops::Activation::kGeluTanh));
}

STDiTText::STDiTText(const weights::Scope& scope, const STDiTConfig& config)
    : y_embedding(learned_text(scope, config)),
      fc1(scope / "y_proj" / "fc1", config.caption_channels, config.hidden_size),
      fc2(scope / "y_proj" / "fc2", config.hidden_size, config.hidden_size) {}

std::vector<at::Tensor> STDiTText::operator()(const std::vector<Conditioning>& prompts) const {
  std::vector<at::Tensor> projected;
  for (const Conditioning& prompt : prompts) {
    const auto null = prompt.find(kNullTokens);
    const at::Tensor text = null == prompt.end() ? prompt.at(kTokens).to(y_embedding.scalar_type())
                                                 : y_embedding.narrow(0, 0, null->second.item<int64_t>());
    projected.push_back(fc2(fc1(text.unsqueeze(0), ops::Activation::kGeluTanh)));
  }
  return projected;
}

STDiTEmbedding::STDiTEmbedding(const weights::Scope& scope, const STDiTConfig& config) {
  // A convolution whose stride is its kernel is a matrix product over patches.
  const weights::Scope proj = scope / "proj";
  const int64_t width = config.hidden_size;
  proj_ = ops::Linear(proj.tensor("weight", {width, config.in_channels, 1, 2, 2}).flatten(1),
                      proj.tensor("bias", {width}), ops::Packing::kForSpeed, proj.name());
}

at::Tensor STDiTEmbedding::operator()(const at::Tensor& latents, const at::Tensor& positions,
                                      const nn::Tokens& tokens) const {
  const int64_t rows = latents.size(3), columns = latents.size(4);
  const at::Tensor whole =
      at::constant_pad_nd(latents.to(positions.scalar_type()), {0, columns % 2, 0, rows % 2});
  const at::Tensor x = proj_(nn::patchify(whole, kSTDiTPatch));
  const parallel::Grid& grid = tokens.grid();
  const at::Tensor of_all = positions.unsqueeze(0).expand({grid.frames, -1, -1});
  return x + tokens.local(of_all.flatten(0, 1), 0);
}

at::Tensor stdit_positions(const STDiTConfig& config, const parallel::Grid& grid,
                           const std::map<std::string, at::Tensor>& numbers) {
  const auto side = [&](const char* name) { return numbers.at(name)[0].item<double>(); };
  const double scale = std::sqrt(side("height") * side("width")) / static_cast<double>(config.input_sq_size);
  const double base = std::nearbyint(std::sqrt(static_cast<double>(grid.rows * grid.columns)));
  return nn::sincos_position_embedding(config.hidden_size, grid.rows, grid.columns,
                                       static_cast<int64_t>(base), scale);
}

at::Tensor stdit_latents(const at::Tensor& patches, const LatentShape& latents, const nn::Tokens& tokens) {
  return nn::unpatchify(patches, tokens.held(), kSTDiTPatch)
      .narrow(3, 0, tokens.local_rows(latents.latent_height, kSTDiTPatch.rows))
      .narrow(4, 0, latents.latent_width);
}

at::Tensor by_frame(const at::Tensor& denoised, const at::Tensor& given, const at::Tensor& denoised_frames,
                    const nn::Tokens& tokens) {
  if (!denoised_frames.defined()) return denoised.size(0) == 1 ? denoised.squeeze(0) : denoised;
  const at::Tensor frames = tokens.local_frames(denoised_frames, 1).unsqueeze(-1).unsqueeze(-1);
  return at::where(frames, denoised.unsqueeze(1), given.unsqueeze(1));
}

STDiTFinalLayer::STDiTFinalLayer(const weights::Scope& scope, const STDiTConfig& config, Range channels)
    : scale_shift_table(scope.with_dtype(at::kFloat).tensor("scale_shift_table", {2, config.hidden_size})) {
  const weights::Scope proj = scope / "linear";
  const int64_t pixels = kSTDiTPatch.size(), all = pixels * config.out_channels();
  const auto wanted = [&](const at::Tensor& x) {
    return x.unflatten(0, {pixels, config.out_channels()})
        .narrow(1, channels.begin, channels.length)
        .flatten(0, 1)
        .contiguous();
  };
  linear = ops::Linear(wanted(proj.tensor("weight", {all, config.hidden_size})),
                       wanted(proj.tensor("bias", {all})), ops::Packing::kForSpeed, proj.name());
}

at::Tensor STDiTFinalLayer::operator()(const at::Tensor& x, const at::Tensor& times, const at::Tensor& given,
                                       const at::Tensor& denoised_frames, const nn::Tokens& tokens) const {
  const auto modulated = [&](const at::Tensor& y, const at::Tensor& modulation) {  // [.., 2, C]: shift, scale
    return ops::modulated_layer_norm(y, modulation.select(-2, 1), modulation.select(-2, 0), kSTDiTEpsilon);
  };
  const auto table = [&](const at::Tensor& of_samples) {
    return scale_shift_table + of_samples.unsqueeze(1);
  };
  at::Tensor y = modulated(x, by_frame(table(times), {}, {}, tokens));
  if (denoised_frames.defined()) {
    const at::Tensor again = modulated(y, by_frame(table(given), {}, {}, tokens));
    const int64_t frames = tokens.held().frames;
    const at::Tensor local = tokens.local_frames(denoised_frames, 1).unsqueeze(-1).unsqueeze(-1);
    const std::vector<int64_t> unfolded = {frames, y.size(1) / std::max<int64_t>(frames, 1)};
    y = at::where(local, y.unflatten(1, unfolded), again.unflatten(1, unfolded)).flatten(1, 2);
  }
  return linear(y).to(at::kFloat);
}

}  // namespace tessera::models
