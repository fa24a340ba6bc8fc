#include "models/unet_2d_condition.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/device.h"
#include "models/loading.h"

namespace tessera::models {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

// Builds the layers of a block with the options that they share.
class LayerReader {
 public:
  explicit LayerReader(const UNet2DConfig& config) : config_(config) {}

  UNetLayer read(const weights::Scope& block, int64_t i, int64_t in, int64_t out) const {
    return {ResnetBlock2D(block / "resnets" / i, in, out,
                          {config_.norm_groups, config_.norm_eps, config_.embedding_channels()}),
            std::nullopt};
  }
  // Also builds a transformer with this many layers, if there are any.
  UNetLayer read(const weights::Scope& block, int64_t i, int64_t in, const UNet2DConfig::Level& level,
                 int64_t transformers) const {
    UNetLayer layer = read(block, i, in, level.channels);
    if (transformers > 0) {
      layer.attention.emplace(
          block / "attentions" / i, level.channels,
          Transformer2DModel::Options{transformers, level.heads, level.context_width, config_.norm_groups,
                                      config_.use_linear_projection});
    }
    return layer;
  }

 private:
  const UNet2DConfig& config_;
};

}  // namespace

UNet2DConditionModel::UNet2DConditionModel(const weights::Scope& scope, const UNet2DConfig& config)
    : config_(config),
      conv_in_(scope / "conv_in", config.in_channels, config.levels.front().channels, 3, 1, 1),
      time_embedding_(scope.with_dtype(at::kFloat) / "time_embedding", config.levels.front().channels,
                      config.embedding_channels(), config.time_cond_proj_dim),
      conv_norm_out_(scope / "conv_norm_out", config.levels.front().channels, config.norm_groups,
                     config.norm_eps, ops::Activation::kSilu),
      conv_out_(scope / "conv_out", config.levels.front().channels, config.out_channels, 3, 1, 1),
      dtype_(scope.dtype()) {
  using Level = UNet2DConfig::Level;
  if (config.addition_time_embed_dim > 0) {
    add_embedding_.emplace(scope.with_dtype(at::kFloat) / "add_embedding", config.addition_inputs,
                           config.embedding_channels());
  }
  const LayerReader reader(config_);
  const std::vector<Level>& levels = config_.levels;
  std::vector<int64_t> skips = {levels.front().channels};  // channels that down blocks keep for up blocks
  for (size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    const weights::Scope block = scope / "down_blocks" / static_cast<int64_t>(i);
    Down& down = down_blocks_.emplace_back();
    for (int64_t j = 0; j < level.layers; ++j) {
      down.layers.push_back(reader.read(block, j, skips.back(), level, level.down_transformers));
      skips.push_back(level.channels);
    }
    if (i + 1 == levels.size()) break;
    down.downsampler.emplace(block / "downsamplers" / 0 / "conv", level.channels, level.channels, 3, 2, 1);
    skips.push_back(level.channels);
  }

  Level middle = levels.back();
  middle.heads = config_.mid_heads;
  if (config_.has_mid_block) {
    const weights::Scope mid = scope / "mid_block";
    mid_block_.push_back(reader.read(mid, 0, middle.channels, middle, config_.mid_transformers));
    mid_block_.push_back(reader.read(mid, 1, middle.channels, middle.channels));
  }

  int64_t channels = middle.channels;
  for (size_t i = levels.size(); i-- > 0;) {
    const Level& level = levels[i];
    const weights::Scope block = scope / "up_blocks" / static_cast<int64_t>(levels.size() - 1 - i);
    Up& up = up_blocks_.emplace_back();
    for (int64_t j = 0; j <= level.layers; ++j) {
      up.layers.push_back(reader.read(block, j, channels + skips.back(), level, level.up_transformers));
      skips.pop_back();
      channels = level.channels;
    }
    if (i > 0) up.upsampler.emplace(block / "upsamplers" / 0, channels);
  }
}

class UNetForward final : public Forward {
 public:
  UNetForward(const UNet2DConditionModel& model, const ForwardInputs& inputs)
      : model_(model),
        context_(prompts_of(model, inputs), inputs.prompt_of),
        samples_(inputs.prompt_of.size()) {
    levels_.emplace_back(inputs.tokens);
    while (levels_.size() < model.config_.levels.size()) levels_.push_back(levels_.back().coarser());
    for (const auto& down : model.down_blocks_) add_to_context(down.layers);
    add_to_context(model.mid_block_);
    for (const auto& up : model.up_blocks_) add_to_context(up.layers);
    if (model.add_embedding_) added_ = (*model.add_embedding_)(conditions(inputs));
    if (model.time_embedding_.cond_proj) guidance_ = (*model.time_embedding_.cond_proj)(guidance_of(inputs));
  }

  void begin(const Timestep& timestep) override {
    at::Tensor time = nn::sinusoidal_embedding(timestep.on_device, model_.config_.levels.front().channels);
    if (guidance_.defined()) time = time + guidance_;
    time = model_.time_embedding_(time);
    if (added_.defined()) time = time + added_;
    embedding_ = at::silu(time).expand({samples_, -1}).to(model_.dtype_);
  }

  // hidden[0] is the current state; the tensors after it are skip connections, which up blocks take from the
  // end.
  Hidden embed(const at::Tensor& latents) override {
    const at::Tensor x = latents.to(model_.dtype_).contiguous(kChannelsLast);
    const at::Tensor wide = model_.conv_in_(x, levels_.front(), /*always_fresh=*/true);
    return {wide, wide};
  }

  void block(int64_t i, Hidden& hidden) override {
    const auto levels = static_cast<int64_t>(levels_.size());
    if (i < levels) {
      down(static_cast<size_t>(i), hidden);
    } else if (i == levels) {
      for (const UNetLayer& layer : model_.mid_block_)
        hidden[0] = run(layer, std::move(hidden[0]), levels_.back());
    } else {
      up(static_cast<size_t>(i - levels - 1), hidden);
    }
  }

  at::Tensor head(const Hidden& hidden) override {
    return model_.conv_out_(model_.conv_norm_out_, hidden[0], levels_.front()).to(at::kFloat).contiguous();
  }

 private:
  static std::vector<at::Tensor> prompts_of(const UNet2DConditionModel& model, const ForwardInputs& inputs) {
    std::vector<at::Tensor> prompts;
    for (const Conditioning& prompt : inputs.prompts)
      prompts.push_back(prompt.at(kTokens).to(model.dtype_).unsqueeze(0));
    return prompts;
  }

  void add_to_context(const std::vector<UNetLayer>& layers) {
    for (const UNetLayer& layer : layers) {
      if (!layer.attention) continue;
      for (const BasicTransformerBlock& block : layer.attention->transformer_blocks)
        context_.add(block.attn2);
    }
  }

  // Concatenates the pooled text and the embeddings of the six size numbers: [B, addition_inputs].
  at::Tensor conditions(const ForwardInputs& inputs) const {
    const at::Tensor pooled = inputs.of_samples(kPooled).to(at::kFloat);
    const std::vector<double> sizes = inputs.latent_shape.sizes.values();
    const at::Tensor embedded = nn::sinusoidal_embedding(at::tensor(sizes, at::kFloat).to(pooled.device()),
                                                         model_.config_.addition_time_embed_dim);
    return at::concat({pooled, embedded.reshape({1, -1}).expand({pooled.size(0), -1})}, 1);
  }

  // Embeds the guidance scales, on the host as in diffusers: [B or 1, time_cond_proj_dim].
  at::Tensor guidance_of(const ForwardInputs& inputs) const {
    return nn::guidance_embedding((inputs.by_sample.at(kGuidanceScale) - 1).to(at::kFloat),
                                  model_.config_.time_cond_proj_dim)
        .to(inputs.prompts.front().at(kTokens).device());
  }

  at::Tensor run(const UNetLayer& layer, at::Tensor x, const nn::Rows& rows) {
    x = layer.resnet(std::move(x), rows, embedding_);
    return layer.attention ? (*layer.attention)(std::move(x), rows, context_) : x;
  }

  void down(size_t level, Hidden& hidden) {
    const UNet2DConditionModel::Down& block = model_.down_blocks_[level];
    for (const UNetLayer& layer : block.layers) {
      hidden[0] = run(layer, std::move(hidden[0]), levels_[level]);
      hidden.push_back(hidden[0]);
    }
    if (!block.downsampler) return;
    hidden[0] = (*block.downsampler)(hidden[0], levels_[level]);
    hidden.push_back(hidden[0]);
  }

  void up(size_t i, Hidden& hidden) {
    const UNet2DConditionModel::Up& block = model_.up_blocks_[i];
    const size_t level = levels_.size() - 1 - i;
    for (const UNetLayer& layer : block.layers) {
      at::Tensor joined = at::concat({hidden[0], hidden.back()}, 1);  // channels-last, as both are
      hidden.pop_back();
      hidden[0] = run(layer, std::move(joined), levels_[level]);
    }
    if (block.upsampler) hidden[0] = (*block.upsampler)(hidden[0], levels_[level], levels_[level - 1]);
  }

  const UNet2DConditionModel& model_;
  nn::Context context_;
  int64_t samples_;
  std::vector<nn::Rows> levels_;  // from the finest to the coarsest
  at::Tensor added_;              // [B, embedding channels] fp32, or undefined
  at::Tensor guidance_;           // added to the embedded timestep: [B or 1, channels] fp32, or undefined
  at::Tensor embedding_;          // the step's, after SiLU: [B, embedding channels]
};

std::unique_ptr<Forward> UNet2DConditionModel::start(const ForwardInputs& inputs) const {
  return std::make_unique<UNetForward>(*this, inputs);
}

DenoiserShape read_unet_shape(const std::filesystem::path& model) {
  return unet_shape(UNet2DConfig(JsonConfig::read(part_folder(model, "unet") / "config.json")));
}

DenoiserShape read_stable_diffusion_shape(const std::filesystem::path& model) {
  const JsonConfig config = JsonConfig::read(part_folder(model, "unet") / "config.json");
  DenoiserShape shape = unet_shape(UNet2DConfig(config));
  constexpr int64_t kLeastSize = 64;
  int major = 0, minor = 0;
  const std::string version = config.string("_diffusers_version", "", Null::kDefault);
  const bool is_read = std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2;
  if (is_read && major == 0 && minor < 9) shape.sample_size = std::max(shape.sample_size, kLeastSize);
  return shape;
}

DenoiserShape unet_shape(const UNet2DConfig& config) {
  const auto levels = static_cast<int64_t>(config.levels.size());
  int64_t heads = config.mid_heads;
  for (const UNet2DConfig::Level& level : config.levels) {
    if (level.down_transformers + level.up_transformers > 0) heads = std::min(heads, level.heads);
  }
  return {.heads = heads,
          .blocks = 2 * levels + 1,
          .latent_channels = config.in_channels,
          .sample_size = config.sample_size,
          .takes_guidance_scale = config.time_cond_proj_dim > 0,
          .row_unit = int64_t{1} << (levels - 1),
          .has_group_norms = true,
          .has_streams = false};
}

std::unique_ptr<Denoiser> load_unet(const std::filesystem::path& model, const LoadOptions& options,
                                    LoadStatistics& statistics) {
  return load_unet_folder(part_folder(model, "unet"), options, statistics);
}

std::unique_ptr<Denoiser> load_unet_folder(const std::filesystem::path& folder, const LoadOptions& options,
                                           LoadStatistics& statistics) {
  PartFiles files(folder, weights::Library::kDiffusers, options);
  const UNet2DConfig config(files.config());
  const weights::Scope scope = files.scope();
  // The CPU does not have fp16 convolutions.
  const bool widens = is_for_cpu(scope.device()) && scope.dtype() == at::kHalf;
  auto unet = std::make_unique<UNet2DConditionModel>(widens ? scope.with_dtype(at::kFloat) : scope, config);
  files.finish(statistics);
  return unet;
}

}  // namespace tessera::models
