#include "models/pixart.h"

#include "core/error.h"
#include "core/log.h"
#include "ops/attention.h"
#include "ops/modulate.h"

namespace tessera::models {
namespace {

constexpr int64_t kTimeChannels = 256;

}  // namespace

PixArtAttention::PixArtAttention(const weights::Scope& scope, const PixArtConfig& config, int64_t context_dim,
                                 const comm::TensorGroups& groups) {
  const nn::Split split{config.num_attention_heads, config.attention_head_dim};
  const int64_t width = config.width();
  heads = groups.part(config.num_attention_heads).length;
  if (context_dim == 0) {
    to_qkv = nn::ColumnParallel({scope / "to_q", scope / "to_k", scope / "to_v"}, width, split, groups);
  } else {
    to_q = nn::ColumnParallel({scope / "to_q"}, width, split, groups);
    to_kv = nn::ColumnParallel({scope / "to_k", scope / "to_v"}, context_dim, split, groups);
  }
  to_out = nn::RowParallel(scope / "to_out" / 0, split, width, groups);
}

PixArtBlock::PixArtBlock(const weights::Scope& scope, const PixArtConfig& config,
                         const comm::TensorGroups& groups)
    : attn1(scope / "attn1", config, /*context_dim=*/0, groups),
      attn2(scope / "attn2", config, config.cross_attention_dim, groups),
      scale_shift_table(scope.with_dtype(at::kFloat).tensor("scale_shift_table", {6, config.width()})),
      norm_eps(config.norm_eps) {
  const nn::Split inner{4 * config.width(), 1};
  ff_in = nn::ColumnParallel({scope / "ff" / "net" / 0 / "proj"}, config.width(), inner, groups);
  ff_out = nn::RowParallel(scope / "ff" / "net" / 2, inner, config.width(), groups);
}

void PixArtBlock::operator()(at::Tensor& x, const PixArtStep& step, const PromptKeysValues& prompts,
                             int64_t layer, nn::SelfAttention& self_attention) const {
  const at::Tensor table = scale_shift_table + step.modulation;  // [6, C]
  const at::Tensor shift_attention = table[0], scale_attention = table[1], gate_attention = table[2];
  const at::Tensor shift_feed_forward = table[3], scale_feed_forward = table[4], gate_feed_forward = table[5];

  {
    const at::Tensor normed = ops::modulated_layer_norm(x, scale_attention, shift_attention, norm_eps);
    const at::Tensor qkv = attn1.to_qkv(normed);  // [B, S, 3 * H/tp * D]
    const at::Tensor attended = self_attention(qkv, attn1.heads, layer, step.patches);
    ops::add_gated_(x, attn1.to_out(attended), gate_attention);
  }
  {
    const at::Tensor q = attn2.to_q(x);  // [B, S, H/tp * D]
    const at::Tensor attended = at::empty_like(q);
    for (int64_t b = 0; b < q.size(0); ++b) {  // prompts differ in length
      const auto part = prompts[step.prompt_of[b]].chunk(2, 2);
      ops::attention_into(attended.narrow(0, b, 1), q.narrow(0, b, 1), part[0], part[1], attn2.heads);
    }
    x += attn2.to_out(attended);
  }
  const at::Tensor normed = ops::modulated_layer_norm(x, scale_feed_forward, shift_feed_forward, norm_eps);
  const at::Tensor hidden = ff_in(normed, ops::Activation::kGeluTanh);  // [B, S, 4C/tp]
  ops::add_gated_(x, ff_out(hidden), gate_feed_forward);
}

PixArtTransformer::PixArtTransformer(const weights::Scope& scope, const PixArtConfig& config,
                                     const Range& blocks, const comm::TensorGroups& groups)
    : config_(config),
      stage_(blocks),
      timestep_embedder_(scope.with_dtype(at::kFloat) / "adaln_single" / "emb" / "timestep_embedder",
                         kTimeChannels, config.width()),
      dtype_(scope.dtype()) {
  const int64_t width = config.width(), patch = config.patch_size;
  const weights::Scope fp32 = scope.with_dtype(at::kFloat);

  if (is_first()) {
    // A convolution of stride p and kernel p is a product over patches.
    const weights::Scope proj = scope / "pos_embed" / "proj";
    patch_proj_ = ops::Linear(proj.tensor("weight", {width, config.in_channels, patch, patch}).flatten(1),
                              proj.tensor("bias", {width}));
  }
  adaln_linear_ = ops::Linear(fp32 / "adaln_single" / "linear", width, 6 * width);
  if (config.use_additional_conditions) {
    const weights::Scope emb = fp32 / "adaln_single" / "emb";
    resolution_embedder_.emplace(emb / "resolution_embedder", kTimeChannels, width / 3);
    aspect_ratio_embedder_.emplace(emb / "aspect_ratio_embedder", kTimeChannels, width / 3);
  }
  if (config.caption_channels > 0) {
    caption_linear_1_.emplace(scope / "caption_projection" / "linear_1", config.caption_channels, width);
    caption_linear_2_.emplace(scope / "caption_projection" / "linear_2", width, width);
  }
  for (int64_t i = stage_.begin; i < stage_.end(); ++i) {
    blocks_.emplace_back(scope / "transformer_blocks" / i, config, groups);
  }
  if (!is_last()) return;

  scale_shift_table_ = fp32.tensor("scale_shift_table", {2, width});
  // The outputs of a token are [p, p, out]; those past `in` predict the variance, which no sampler here uses.
  const weights::Scope out = scope / "proj_out";
  const int64_t all = patch * patch * config.out_channels;
  const auto predicted = [&](const at::Tensor& x) {
    return x.unflatten(0, {patch * patch, config.out_channels})
        .narrow(1, 0, config.in_channels)
        .flatten(0, 1);
  };
  proj_out_ = ops::Linear(predicted(out.tensor("weight", {all, width})).contiguous(),
                          predicted(out.tensor("bias", {all})).contiguous());
}

std::unique_ptr<Denoiser::Context> PixArtTransformer::prepare(const std::vector<Conditioning>& prompts,
                                                              const Canvas& canvas) const {
  const parallel::TokenCut& cut = canvas.cut;
  TESSERA_CHECK(cut.rows * config_.patch_size == canvas.latent_height &&
                    cut.columns * config_.patch_size == canvas.latent_width,
                "a cut of {} x {} tokens for latents of {} x {}", cut.rows, cut.columns, canvas.latent_height,
                canvas.latent_width);
  auto context = std::make_unique<PixArtContext>(cut);
  const at::Device device = adaln_linear_.bias.device();
  context->positions =
      nn::sincos_position_embedding(config_.width(), cut.rows, cut.columns,
                                    config_.sample_size / config_.patch_size, config_.interpolation_scale)
          .view({cut.rows, cut.columns, config_.width()})
          .to(dtype_)
          .to(device);
  if (config_.use_additional_conditions) {
    const double height = static_cast<double>(canvas.latent_height * canvas.scale_factor);
    const double width = static_cast<double>(canvas.latent_width * canvas.scale_factor);
    const auto embed = [&](const std::vector<double>& values) {
      return nn::sinusoidal_embedding(values, kTimeChannels).to(device);
    };
    context->size_embedding = at::cat({(*resolution_embedder_)(embed({height, width})).reshape({1, -1}),
                                       (*aspect_ratio_embedder_)(embed({height / width}))},
                                      1);
  }
  std::vector<at::Tensor> captions;  // [1, L, C]
  for (const Conditioning& prompt : prompts) {
    at::Tensor caption = prompt.tokens.to(dtype_).unsqueeze(0);
    if (caption_linear_1_)
      caption = (*caption_linear_2_)((*caption_linear_1_)(caption, ops::Activation::kGeluTanh));
    captions.push_back(caption);
  }
  for (const PixArtBlock& block : blocks_) {
    PromptKeysValues& keys_values = context->keys_values.emplace_back();
    for (const at::Tensor& caption : captions) keys_values.push_back(block.attn2.to_kv(caption));
  }
  return context;
}

at::Tensor PixArtTransformer::run_stage(const at::Tensor& input, double timestep,
                                        at::ArrayRef<int64_t> prompt_of, Range patches,
                                        Context& context) const {
  auto& own = static_cast<PixArtContext&>(context);
  at::Tensor x = is_first() ? embed(input, patches, own) : input;
  const at::Tensor time = time_embedding(timestep, own);
  const PixArtStep step{adaln_linear_(at::silu(time)).view({6, config_.width()}), prompt_of, patches};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i](x, step, own.keys_values[i], static_cast<int64_t>(i), own.self_attention);
  }
  return is_last() ? head(x, time, own.self_attention.cut().columns) : x;
}

at::Tensor PixArtTransformer::embed(const at::Tensor& z, Range patches, const PixArtContext& context) const {
  const int64_t patch = config_.patch_size;
  const at::Tensor tokens = z.to(dtype_)
                                .unflatten(3, {z.size(3) / patch, patch})
                                .unflatten(2, {z.size(2) / patch, patch})  // [B, in, h/p, p, w/p, p]
                                .permute({0, 2, 4, 1, 3, 5})
                                .flatten(3)
                                .flatten(1, 2);  // [B, S, in * p * p]
  const parallel::TokenCut& cut = context.self_attention.cut();
  std::vector<at::Tensor> positions;
  for (int64_t i = patches.begin; i < patches.end(); ++i) {
    const Range rows = cut.part(i, cut.sequence_rank());
    positions.push_back(context.positions.narrow(0, rows.begin, rows.length));
  }
  return patch_proj_(tokens).add_(at::cat(positions).flatten(0, 1));
}

at::Tensor PixArtTransformer::time_embedding(double timestep, const PixArtContext& context) const {
  const at::Tensor sinusoids =
      nn::sinusoidal_embedding({timestep}, kTimeChannels).to(adaln_linear_.bias.device());
  const at::Tensor time = timestep_embedder_(sinusoids);
  return context.size_embedding.defined() ? time + context.size_embedding : time;
}

at::Tensor PixArtTransformer::head(const at::Tensor& x, const at::Tensor& time, int64_t columns) const {
  constexpr double kEpsilon = 1e-6;
  const at::Tensor table = scale_shift_table_ + time;  // [2, C]: shift, scale
  const at::Tensor out = proj_out_(ops::modulated_layer_norm(x, table[1], table[0], kEpsilon)).to(at::kFloat);
  const int64_t patch = config_.patch_size, rows = x.size(1) / columns;
  return out.view({x.size(0), rows, columns, patch, patch, config_.in_channels})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({x.size(0), config_.in_channels, rows * patch, columns * patch});
}

DenoiserShape read_pixart_shape(const std::filesystem::path& model) {
  const PixArtConfig config(JsonConfig::read(model / "transformer" / "config.json"));
  // In a block: four products of width x width for self-attention, two for cross-attention, eight for the
  // feed-forward.
  const double block = 14.0 * static_cast<double>(config.width());
  const auto ends = static_cast<double>(config.patch_size * config.patch_size * config.in_channels);
  return {config.num_attention_heads, config.num_layers, ends / block, ends / block};
}

std::unique_ptr<Denoiser> load_pixart(const std::filesystem::path& model, const LoadOptions& options,
                                      LoadStatistics& statistics) {
  const std::filesystem::path folder = model / "transformer";
  const PixArtConfig config(JsonConfig::read(folder / "config.json"));
  weights::Checkpoint checkpoint(folder);
  const weights::Scope scope(checkpoint, options.dtype, options.device);
  const Range all{0, config.num_layers}, blocks = options.blocks.value_or(all);
  auto transformer = std::make_unique<PixArtTransformer>(scope, config, blocks, options.tensor_groups);
  if (blocks == all) {  // else other stages use them
    for (const std::string& key : checkpoint.unused())
      log_warning("[{}] weight '{}' is not used", folder.string(), key);
  }
  statistics.bytes_read += checkpoint.bytes_used();
  statistics.bytes_held += checkpoint.bytes_held();
  return transformer;
}

}  // namespace tessera::models
