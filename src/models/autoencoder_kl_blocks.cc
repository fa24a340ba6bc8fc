#include "models/autoencoder_kl_blocks.h"

#include <array>
#include <utility>

#include "ops/attention.h"

namespace tessera::models {
namespace {

constexpr double kEps = 1e-6;

// Layers 0, 1, ... of `scope`: the first maps `in` channels to `out`, the others keep `out`.
std::vector<ResnetBlock2D> resnet_chain(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                        int64_t norm_groups) {
  std::vector<ResnetBlock2D> chain;
  for (int64_t i = 0; i < layers; ++i) chain.emplace_back(scope / i, i == 0 ? in : out, out, norm_groups);
  return chain;
}

// Query, key and value as one product.
ops::Linear read_qkv(const weights::Scope& scope, int64_t channels) {
  const bool old_names = (scope / "query").has("weight");
  const Range all{0, channels};
  std::vector<ops::LayerPart> parts;
  for (const char* name :
       old_names ? std::array{"query", "key", "value"} : std::array{"to_q", "to_k", "to_v"})
    parts.push_back({scope / name, channels, all});
  return ops::read_linear(parts, channels, all);
}

ops::Linear read_out(const weights::Scope& scope, int64_t channels) {
  const bool old_names = (scope / "proj_attn").has("weight");
  return {old_names ? scope / "proj_attn" : scope / "to_out" / 0, channels, channels};
}

}  // namespace

ResnetBlock2D::ResnetBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t norm_groups)
    : norm1(scope / "norm1", in, norm_groups, kEps),
      norm2(scope / "norm2", out, norm_groups, kEps),
      conv1(scope / "conv1", in, out, 3, 1, 1),
      conv2(scope / "conv2", out, out, 3, 1, 1) {
  if (in != out) conv_shortcut.emplace(scope / "conv_shortcut", in, out, 1);
}

at::Tensor ResnetBlock2D::operator()(at::Tensor x) const {
  at::Tensor sum = conv_shortcut ? (*conv_shortcut)(x) : x;
  at::Tensor h = conv1(norm1, std::move(x));
  conv2.add_to(sum, norm2, std::move(h));
  return sum;
}

AttentionBlock::AttentionBlock(const weights::Scope& scope, int64_t channels, int64_t norm_groups)
    : group_norm(scope / "group_norm", channels, norm_groups, kEps),
      qkv(read_qkv(scope, channels)),
      out(read_out(scope, channels)) {}

at::Tensor AttentionBlock::operator()(at::Tensor x) const {
  // In channels-last a position's channels lie together: [B, C, H, W] is [B, H W, C] without a copy.
  const auto tokens = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
  const std::vector<at::Tensor> parts = qkv(tokens(group_norm(x))).chunk(3, -1);  // [B, H W, C]
  tokens(x).add_(out(ops::attention(parts[0], parts[1], parts[2], /*heads=*/1)));
  return x;
}

MidBlock2D::MidBlock2D(const weights::Scope& scope, int64_t channels, int64_t norm_groups,
                       bool with_attention)
    : resnets(resnet_chain(scope / "resnets", channels, channels, 2, norm_groups)) {
  if (with_attention) attention.emplace(scope / "attentions" / 0, channels, norm_groups);
}

at::Tensor MidBlock2D::operator()(at::Tensor x) const {
  x = resnets[0](std::move(x));
  if (attention) x = (*attention)(std::move(x));
  return resnets[1](std::move(x));
}

DownEncoderBlock2D::DownEncoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                       int64_t norm_groups, bool downsample)
    : resnets(resnet_chain(scope / "resnets", in, out, layers, norm_groups)) {
  if (downsample) downsampler.emplace(scope / "downsamplers" / 0, out);
}

at::Tensor DownEncoderBlock2D::operator()(at::Tensor x) const {
  for (const ResnetBlock2D& resnet : resnets) x = resnet(std::move(x));
  return downsampler ? (*downsampler)(x) : x;
}

UpDecoderBlock2D::UpDecoderBlock2D(const weights::Scope& scope, int64_t in, int64_t out, int64_t layers,
                                   int64_t norm_groups, bool upsample)
    : resnets(resnet_chain(scope / "resnets", in, out, layers, norm_groups)) {
  if (upsample) upsampler.emplace(scope / "upsamplers" / 0, out);
}

at::Tensor UpDecoderBlock2D::operator()(at::Tensor x) const {
  for (const ResnetBlock2D& resnet : resnets) x = resnet(std::move(x));
  return upsampler ? (*upsampler)(x) : x;
}

}  // namespace tessera::models
