#include "models/autoencoder_kl_blocks.h"

#include <array>
#include <utility>

namespace tessera::models {
namespace {

constexpr double kEps = 1e-6;

// Builds layers 0, 1, ... of `scope`: the first maps `in` channels to `out`, the others keep `out`.
std::vector<ResnetBlock2D> resnet_chain(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                        const ResnetBlock2D::Options& options) {
  std::vector<ResnetBlock2D> chain;
  for (int64_t i = 0; i < layers; ++i) chain.emplace_back(scope / i, i == 0 ? in : out, out, options);
  return chain;
}

// Query, key and value are computed by one matrix product.
ops::Linear read_qkv(const weights::Scope& scope, int64_t channels) {
  const bool old_names = (scope / "query").has("weight");
  const Range all{0, channels};
  std::vector<ops::LayerPart> parts;
  for (const char* name :
       old_names ? std::array{"query", "key", "value"} : std::array{"to_q", "to_k", "to_v"})
    parts.push_back({scope / name, channels, all});
  return ops::read_linear(parts, channels, {all});
}

ops::Linear read_out(const weights::Scope& scope, int64_t channels) {
  const bool old_names = (scope / "proj_attn").has("weight");
  return {old_names ? scope / "proj_attn" : scope / "to_out" / 0, channels, channels};
}

}  // namespace

AttentionBlock::AttentionBlock(const weights::Scope& scope, int64_t channels, int64_t norm_groups)
    : group_norm(scope / "group_norm", channels, norm_groups, kEps),
      qkv(read_qkv(scope, channels)),
      out(read_out(scope, channels)) {}

at::Tensor AttentionBlock::operator()(at::Tensor x, const nn::Rows& rows) const {
  // In channels-last the channels of a position are adjacent, so [B, C, h, W] is [B, h W, C] without a copy.
  const auto tokens = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
  const at::Tensor normed = nn::group_norm(group_norm, x, rows);
  const std::vector<at::Tensor> parts = qkv(tokens(normed)).chunk(3, -1);  // [B, h W, C]
  const int64_t depth = x.size(1);                                         // width of the only head
  if (x.use_count() > 1) x = x.clone();
  tokens(x).add_(out(rows.attention({parts[0], parts[1], parts[2]}, depth)));
  return x;
}

MidBlock2D::MidBlock2D(const weights::Scope& scope, int64_t channels, const ResnetBlock2D::Options& resnet,
                       bool with_attention)
    : resnets(resnet_chain(scope / "resnets", channels, channels, 2, resnet)) {
  if (with_attention) attention.emplace(scope / "attentions" / 0, channels, resnet.norm_groups);
}

at::Tensor MidBlock2D::operator()(at::Tensor x, const nn::Rows& rows) const {
  x = resnets[0](std::move(x), rows);
  if (attention) x = (*attention)(std::move(x), rows);
  return resnets[1](std::move(x), rows);
}

DownEncoderBlock2D::DownEncoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                       const ResnetBlock2D::Options& resnet, bool downsample)
    : resnets(resnet_chain(scope / "resnets", in, out, layers, resnet)) {
  if (downsample) downsampler.emplace(scope / "downsamplers" / 0, out);
}

at::Tensor DownEncoderBlock2D::operator()(at::Tensor x, nn::Rows& rows) const {
  for (const ResnetBlock2D& resnet : resnets) x = resnet(std::move(x), rows);
  if (!downsampler) return x;
  x = (*downsampler)(x, rows);
  rows = rows.coarser();
  return x;
}

UpDecoderBlock2D::UpDecoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                   const ResnetBlock2D::Options& resnet, bool upsample)
    : resnets(resnet_chain(scope / "resnets", in, out, layers, resnet)) {
  if (upsample) upsampler.emplace(scope / "upsamplers" / 0, out);
}

at::Tensor UpDecoderBlock2D::operator()(at::Tensor x, nn::Rows& rows) const {
  for (const ResnetBlock2D& resnet : resnets) x = resnet(std::move(x), rows);
  if (!upsampler) return x;
  x = (*upsampler)(x, rows);
  rows = rows.finer();
  return x;
}

}  // namespace tessera::models
