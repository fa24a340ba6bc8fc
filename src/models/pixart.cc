#include "models/pixart.h"

#include "models/loading.h"
#include "ops/modulate.h"

namespace tessera::models {
namespace {

constexpr int64_t kTimeChannels = 256;

}  // namespace

PixArtSelfAttention::PixArtSelfAttention(const weights::Scope& scope, const PixArtConfig& config)
    : depth(config.attention_head_dim) {
  const nn::Split heads{config.num_attention_heads, depth};
  to_qkv = nn::ColumnParallel({{scope / "to_q", heads}, {scope / "to_k", heads}, {scope / "to_v", heads}},
                              config.width(), {.bias = config.attention_bias});
  to_out = nn::RowParallel(scope / "to_out" / 0, heads, config.width());
}

at::Tensor PixArtSelfAttention::operator()(const at::Tensor& x, nn::Tokens& tokens) const {
  const std::vector<at::Tensor> qkv = to_qkv.each(x);
  return to_out(tokens.attention({qkv[0], qkv[1], qkv[2]}, depth));
}

PixArtBlock::PixArtBlock(const weights::Scope& scope, const PixArtConfig& config)
    : attn1(scope / "attn1", config),
      attn2(scope / "attn2", config.width(), config.cross_attention_dim, config.num_attention_heads,
            config.attention_head_dim, {.bias = config.attention_bias}),
      ff_in(scope / "ff" / "net" / 0 / "proj", config.width(), {4 * config.width(), 1}),
      ff_out(scope / "ff" / "net" / 2, {4 * config.width(), 1}, config.width()),
      scale_shift_table(scope.with_dtype(at::kFloat).tensor("scale_shift_table", {6, config.width()})),
      norm_eps(config.norm_eps) {}

void PixArtBlock::operator()(at::Tensor& x, const at::Tensor& modulation,
                             const std::vector<at::Tensor>& prompts, at::ArrayRef<int64_t> prompt_of,
                             nn::Tokens& tokens) const {
  const at::Tensor table = scale_shift_table + modulation;  // [6, C]
  const at::Tensor shift_attention = table[0], scale_attention = table[1], gate_attention = table[2];
  const at::Tensor shift_feed_forward = table[3], scale_feed_forward = table[4], gate_feed_forward = table[5];

  const at::Tensor normed = ops::modulated_layer_norm(x, scale_attention, shift_attention, norm_eps);
  ops::add_gated_(x, attn1(normed, tokens), gate_attention);
  x += attn2(x, prompts, prompt_of);
  const at::Tensor widened =
      ff_in(ops::modulated_layer_norm(x, scale_feed_forward, shift_feed_forward, norm_eps),
            ops::Activation::kGeluTanh);  // [B, n, 4C]
  ops::add_gated_(x, ff_out(widened), gate_feed_forward);
}

PixArtTransformer::PixArtTransformer(const weights::Scope& scope, const PixArtConfig& config,
                                     const LocalBlocks& local_blocks)
    : config_(config),
      timestep_embedder_(scope.with_dtype(at::kFloat) / "adaln_single" / "emb" / "timestep_embedder",
                         kTimeChannels, config.width()),
      adaln_linear_(scope.with_dtype(at::kFloat) / "adaln_single" / "linear", config.width(),
                    6 * config.width()),
      blocks_(local_blocks, [&](int64_t i) { return PixArtBlock(scope / "transformer_blocks" / i, config); }),
      dtype_(scope.dtype()) {
  const int64_t width = config.width(), patch = config.patch_size;
  const weights::Scope fp32 = scope.with_dtype(at::kFloat);
  if (local_blocks.takes_latents()) {
    // A convolution with stride p and kernel p is a matrix product over patches.
    const weights::Scope proj = scope / "pos_embed" / "proj";
    patch_proj_ = ops::Linear(proj.tensor("weight", {width, config.in_channels, patch, patch}).flatten(1),
                              proj.tensor("bias", {width}), ops::Packing::kForSpeed, proj.name());
  }
  if (config.use_additional_conditions) {
    const weights::Scope emb = fp32 / "adaln_single" / "emb";
    resolution_embedder_.emplace(emb / "resolution_embedder", kTimeChannels, width / 3);
    aspect_ratio_embedder_.emplace(emb / "aspect_ratio_embedder", kTimeChannels, width / 3);
  }
  if (config.caption_channels > 0) {
    caption_linear_1_.emplace(scope / "caption_projection" / "linear_1", config.caption_channels, width);
    caption_linear_2_.emplace(scope / "caption_projection" / "linear_2", width, width);
  }
  if (!local_blocks.predicts()) return;

  scale_shift_table_ = fp32.tensor("scale_shift_table", {2, width});
  // The outputs of a token are [p, p, out]; those past `in` predict the variance, which samplers do not use.
  const weights::Scope out = scope / "proj_out";
  const int64_t all = patch * patch * config.out_channels;
  const auto predicted = [&](const at::Tensor& x) {
    return x.unflatten(0, {patch * patch, config.out_channels})
        .narrow(1, 0, config.in_channels)
        .flatten(0, 1);
  };
  proj_out_ =
      ops::Linear(predicted(out.tensor("weight", {all, width})).contiguous(),
                  predicted(out.tensor("bias", {all})).contiguous(), ops::Packing::kForSpeed, out.name());
}

at::Tensor PixArtTransformer::size_embedding(const LatentShape& latent_shape) const {
  if (!config_.use_additional_conditions) return {};
  const double height = static_cast<double>(latent_shape.latent_height * latent_shape.scale_factor);
  const double width = static_cast<double>(latent_shape.latent_width * latent_shape.scale_factor);
  const auto embed = [&](const std::vector<double>& values) {
    return nn::sinusoidal_embedding(at::tensor(values, at::kFloat).to(adaln_linear_.bias.device()),
                                    kTimeChannels);
  };
  return at::concat({(*resolution_embedder_)(embed({height, width})).reshape({1, -1}),
                     (*aspect_ratio_embedder_)(embed({height / width}))},
                    1);
}

class PixArtForward final : public Forward {
 public:
  PixArtForward(const PixArtTransformer& model, const ForwardInputs& inputs)
      : model_(model),
        prompt_of_(inputs.prompt_of),
        tokens_(inputs.tokens),
        size_embedding_(model.size_embedding(inputs.latent_shape)) {
    const PixArtConfig& config = model.config_;
    const parallel::Grid& grid = tokens_.grid();
    positions_ =
        nn::sincos_position_embedding(config.width(), grid.rows, grid.columns,
                                      config.sample_size / config.patch_size, config.interpolation_scale)
            .to(model.dtype_)
            .to(model.adaln_linear_.bias.device());
    std::vector<at::Tensor> captions;  // [1, L, C]
    for (const Conditioning& prompt : inputs.prompts) {
      at::Tensor caption = prompt.at(kTokens).to(model.dtype_).unsqueeze(0);
      if (model.caption_linear_1_)
        caption = (*model.caption_linear_2_)((*model.caption_linear_1_)(caption, ops::Activation::kGeluTanh));
      captions.push_back(caption);
    }
    for (const PixArtBlock& block : model.blocks_) {
      std::vector<at::Tensor>& of_block = keys_values_.emplace_back();
      for (const at::Tensor& caption : captions) of_block.push_back(block.attn2.keys_values(caption));
    }
  }

  void begin(const Timestep& timestep) override {
    time_ = model_.timestep_embedder_(nn::sinusoidal_embedding(timestep.on_device, kTimeChannels));
    if (size_embedding_.defined()) time_ = time_ + size_embedding_;
    modulation_ = model_.adaln_linear_(at::silu(time_)).view({6, model_.config_.width()});
  }

  Hidden embed(const at::Tensor& latents) override {
    const at::Tensor tokens = nn::patchify(latents.to(model_.dtype_), patch());
    return {model_.patch_proj_(tokens).add_(tokens_.local(positions_, 0))};
  }

  void block(int64_t i, Hidden& hidden) override {
    const auto& prompts = keys_values_[static_cast<size_t>(i - model_.blocks_.first())];
    model_.blocks_[i](hidden[0], modulation_, prompts, prompt_of_, tokens_);
  }

  at::Tensor head(const Hidden& hidden) override {
    constexpr double kEpsilon = 1e-6;
    const at::Tensor table = model_.scale_shift_table_ + time_;  // [2, C]: shift, scale
    const at::Tensor normed = ops::modulated_layer_norm(hidden[0], table[1], table[0], kEpsilon);
    return nn::unpatchify(model_.proj_out_(normed).to(at::kFloat), tokens_.held(), patch()).squeeze(2);
  }

  std::vector<Stream> streams(int64_t /*i*/) const override { return {{.width = model_.config_.width()}}; }

 private:
  nn::PatchSize patch() const { return {1, model_.config_.patch_size, model_.config_.patch_size}; }

  const PixArtTransformer& model_;
  at::ArrayRef<int64_t> prompt_of_;
  nn::Tokens& tokens_;
  at::Tensor size_embedding_;                         // [1, C] fp32, or undefined
  at::Tensor positions_;                              // [N, C]
  std::vector<std::vector<at::Tensor>> keys_values_;  // by local block, and by prompt
  at::Tensor time_, modulation_;                      // the step's, fp32 [1, C] and [6, C]
};

std::unique_ptr<Forward> PixArtTransformer::start(const ForwardInputs& inputs) const {
  return std::make_unique<PixArtForward>(*this, inputs);
}

DenoiserShape read_pixart_shape(const std::filesystem::path& model) {
  const PixArtConfig config(JsonConfig::read(part_folder(model, "transformer") / "config.json"));
  // A block has products of width x width: four in self-attention, two in cross-attention and eight in the
  // feed-forward.
  const double block = 14.0 * static_cast<double>(config.width());
  const auto ends = static_cast<double>(config.patch_size * config.patch_size * config.in_channels);
  return {.heads = config.num_attention_heads,
          .blocks = config.num_layers,
          .embedding = ends / block,
          .head = ends / block,
          .latent_channels = config.in_channels,
          .sample_size = config.sample_size,
          .patch = {1, config.patch_size, config.patch_size}};
}

std::unique_ptr<Denoiser> load_pixart(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  PartFiles files(part_folder(model, "transformer"), weights::Library::kDiffusers, options);
  const PixArtConfig config(files.config());
  const LocalBlocks local_blocks(config.num_layers, options.blocks);
  auto transformer = std::make_unique<PixArtTransformer>(files.scope(), config, local_blocks);
  files.finish(statistics, local_blocks.is_all());
  return transformer;
}

}  // namespace tessera::models
