#include "models/stdit/temporal_vae.h"

#include <ATen/Functions.h>

#include "core/error.h"

namespace tessera::models {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kMaxWidth = 65536, kMaxLevels = 16;
constexpr double kEpsilon = 1e-5;  // of the norms

ops::GroupNorm norm_of(const weights::Scope& scope, int64_t channels, int64_t norm_groups) {
  return {scope, channels, norm_groups, kEpsilon, ops::Activation::kSilu};
}

std::vector<TemporalResBlock> read_blocks(const weights::Scope& scope, int64_t count, int64_t in, int64_t out,
                                          int64_t norm_groups) {
  std::vector<TemporalResBlock> blocks;
  for (int64_t i = 0; i < count; ++i) blocks.emplace_back(scope / i, i == 0 ? in : out, out, norm_groups);
  return blocks;
}

at::Tensor through(const std::vector<TemporalResBlock>& blocks, at::Tensor x, const nn::Rows& rows) {
  for (const TemporalResBlock& block : blocks) x = block(x, rows);
  return x;
}

// [T, 2 C, h, w] -> [2 T, C, h, w]: of two adjacent channels, the second becomes the later frame.
at::Tensor channels_to_time(const at::Tensor& x) {
  return x.unflatten(1, {x.size(1) / 2, 2}).transpose(1, 2).flatten(0, 1).contiguous(kChannelsLast);
}

}  // namespace

TemporalVaeConfig::TemporalVaeConfig(const JsonConfig& json)
    : in_out_channels(json.count("in_out_channels", kMaxWidth, 4)),
      latent_embed_dim(json.count("latent_embed_dim", kMaxWidth, 4)),
      embed_dim(json.count("embed_dim", kMaxWidth, 4)),
      filters(json.count("filters", kMaxWidth, 128)),
      num_res_blocks(json.count("num_res_blocks", kMaxWidth, 4)),
      norm_groups(json.count("num_groups", kMaxWidth, 32)),
      channel_multipliers(json.integers("channel_multipliers", std::vector<int64_t>{1, 2, 2, 4})) {
  if (channel_multipliers.empty() || levels() > kMaxLevels)
    json.fail("channel_multipliers", fmt::format("1 to {} numbers", kMaxLevels));
  for (int64_t level = 0; level < levels(); ++level) {
    if (channel_multipliers[static_cast<size_t>(level)] < 1 || channels(level) > kMaxWidth ||
        channels(level) % norm_groups != 0)
      json.fail("channel_multipliers",
                fmt::format("such that channels are multiples of num_groups ({})", norm_groups));
  }
  const Json* const found = json.value("temporal_downsample");
  const Json given = found ? *found : Json({false, true, true});
  const bool is_list =
      given.is_array() && static_cast<int64_t>(given.size()) == levels() - 1 &&
      std::all_of(given.begin(), given.end(), [](const Json& each) { return each.is_boolean(); });
  if (!is_list) json.fail("temporal_downsample", fmt::format("a list of {} flags", levels() - 1));
  for (const Json& each : given) temporal_downsample.push_back(each.get<bool>());
}

int64_t TemporalVaeConfig::time_factor() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

TemporalResBlock::TemporalResBlock(const weights::Scope& scope, int64_t in, int64_t out, int64_t norm_groups)
    : norm1(norm_of(scope / "norm1", in, norm_groups)),
      norm2(norm_of(scope / "norm2", out, norm_groups)),
      conv1(scope / "conv1" / "conv", in, out, {.bias = false}),
      conv2(scope / "conv2" / "conv", out, out, {.bias = false}) {
  if (in != out)
    conv3.emplace(scope / "conv3" / "conv", in, out, nn::CausalConv3d::Options{.kernel = 1, .bias = false});
}

at::Tensor TemporalResBlock::operator()(const at::Tensor& x, const nn::Rows& rows) const {
  // Nothing else refers to the result of the first convolution, so the norm reuses its memory.
  at::Tensor y = conv2(nn::clip_norm(norm2, conv1(nn::clip_norm(norm1, x, rows), rows), rows), rows);
  return y.add_(conv3 ? (*conv3)(x, rows) : x);
}

TemporalEncoder::TemporalEncoder(const weights::Scope& scope, const TemporalVaeConfig& config)
    : config_(config), dtype_(scope.dtype()) {
  const weights::Scope encoder = scope / "encoder";
  const int64_t norm_groups = config.norm_groups, count = config.num_res_blocks,
                last = config.channels(config.levels() - 1);
  conv_in_ = {encoder / "conv_in" / "conv", config.in_out_channels, config.filters, {.bias = false}};
  int64_t channels = config.filters;
  for (int64_t i = 0; i < config.levels(); ++i) {
    TemporalLevel& level = levels_.emplace_back();
    level.blocks =
        read_blocks(encoder / "block_res_blocks" / i, count, channels, config.channels(i), norm_groups);
    channels = config.channels(i);
    if (i + 1 < config.levels() && config.halves_after(i))
      level.resample.emplace(encoder / "conv_blocks" / i / "conv", channels, channels,
                             nn::CausalConv3d::Options{.time_stride = 2});
  }
  res_blocks_ = read_blocks(encoder / "res_blocks", count, last, last, norm_groups);
  norm1_ = norm_of(encoder / "norm1", last, norm_groups);
  conv2_ = {encoder / "conv2" / "conv", last, 2 * config.latent_embed_dim, {.kernel = 1}};
  quant_conv_ = {
      scope / "quant_conv" / "conv", 2 * config.latent_embed_dim, 2 * config.embed_dim, {.kernel = 1}};
}

std::pair<at::Tensor, at::Tensor> TemporalEncoder::operator()(const at::Tensor& latents,
                                                              const nn::Rows& rows) const {
  const int64_t factor = config_.time_factor(), before = (factor - latents.size(0) % factor) % factor;
  at::Tensor x =
      at::constant_pad_nd(latents.to(dtype_), {0, 0, 0, 0, 0, 0, before, 0}).contiguous(kChannelsLast);
  x = conv_in_(x, rows);
  for (const TemporalLevel& level : levels_) {
    x = through(level.blocks, std::move(x), rows);
    if (level.resample) x = (*level.resample)(x, rows);
  }
  x = through(res_blocks_, std::move(x), rows);
  const at::Tensor moments =
      quant_conv_(conv2_(nn::clip_norm(norm1_, std::move(x), rows), rows), rows).to(at::kFloat);
  constexpr double kLeast = -30, kMost = 20;
  const auto parts = moments.chunk(2, 1);
  return {parts[0], parts[1].clamp(kLeast, kMost)};
}

TemporalDecoder::TemporalDecoder(const weights::Scope& scope, const TemporalVaeConfig& config)
    : config_(config), dtype_(scope.dtype()) {
  const weights::Scope decoder = scope / "decoder";
  const int64_t norm_groups = config.norm_groups, count = config.num_res_blocks;
  int64_t channels = config.channels(config.levels() - 1);
  post_quant_conv_ = {
      scope / "post_quant_conv" / "conv", config.embed_dim, config.latent_embed_dim, {.kernel = 1}};
  conv1_ = {decoder / "conv1" / "conv", config.latent_embed_dim, channels, {}};
  res_blocks_ = read_blocks(decoder / "res_blocks", count, channels, channels, norm_groups);
  for (int64_t i = config.levels() - 1; i >= 0; --i) {
    TemporalLevel& level = levels_.emplace_back();
    level.blocks =
        read_blocks(decoder / "block_res_blocks" / i, count, channels, config.channels(i), norm_groups);
    channels = config.channels(i);
    if (i > 0 && config.halves_after(i - 1))
      level.resample.emplace(decoder / "conv_blocks" / (i - 1) / "conv", channels, 2 * channels,
                             nn::CausalConv3d::Options{});
  }
  norm1_ = norm_of(decoder / "norm1", channels, norm_groups);
  conv_out_ = {decoder / "conv_out" / "conv", channels, config.in_out_channels, {}};
}

at::Tensor TemporalDecoder::operator()(const at::Tensor& z, int64_t frames, const nn::Rows& rows) const {
  const int64_t made = z.size(0) * config_.time_factor();
  TESSERA_CHECK(frames <= made, "{} frames of {} latents", frames, z.size(0));
  at::Tensor x = conv1_(post_quant_conv_(z.to(dtype_).contiguous(kChannelsLast), rows), rows);
  x = through(res_blocks_, std::move(x), rows);
  for (const TemporalLevel& level : levels_) {
    x = through(level.blocks, std::move(x), rows);
    if (level.resample) x = channels_to_time((*level.resample)(x, rows));
  }
  x = conv_out_(nn::clip_norm(norm1_, std::move(x), rows), rows);
  // The encoder put zeros before the first frame.
  return x.narrow(0, made - frames, frames).to(at::kFloat);
}

}  // namespace tessera::models
