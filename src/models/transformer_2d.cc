#include "models/transformer_2d.h"

#include <utility>

namespace tessera::models {
namespace {

constexpr double kNormEps = 1e-6, kLayerNormEps = 1e-5;
constexpr ops::LinearOptions kNoBias{.bias = false};

// A 1x1 convolution is a matrix product at each position.
ops::Linear read_projection(const weights::Scope& scope, int64_t channels, bool is_linear) {
  if (is_linear) return {scope, channels, channels};
  return {scope.tensor("weight", {channels, channels, 1, 1}).flatten(1), scope.tensor("bias", {channels}),
          ops::Packing::kForSpeed, scope.name()};
}

nn::ColumnParallel read_qkv(const weights::Scope& scope, int64_t width, nn::Split heads) {
  return {{{scope / "to_q", heads}, {scope / "to_k", heads}, {scope / "to_v", heads}}, width, kNoBias};
}

}  // namespace

BasicTransformerBlock::BasicTransformerBlock(const weights::Scope& scope, int64_t width, int64_t heads,
                                             int64_t context_width)
    : norm1(scope / "norm1", width, kLayerNormEps),
      to_qkv(read_qkv(scope / "attn1", width, {heads, width / heads})),
      to_out(scope / "attn1" / "to_out" / 0, {heads, width / heads}, width),
      norm2(scope / "norm2", width, kLayerNormEps),
      attn2(scope / "attn2", width, context_width, heads, width / heads, kNoBias),
      norm3(scope / "norm3", width, kLayerNormEps),
      ff(scope / "ff", width, 4 * width),
      depth(width / heads) {}

void BasicTransformerBlock::operator()(at::Tensor& x, const nn::Rows& rows, nn::Context& context) const {
  const std::vector<at::Tensor> qkv = to_qkv.each(norm1(x));
  x += to_out(rows.attention({qkv[0], qkv[1], qkv[2]}, depth));
  x += context.attention(attn2, norm2(x));
  x += ff(norm3(x));
}

Transformer2DModel::Transformer2DModel(const weights::Scope& scope, int64_t channels, const Options& options)
    : norm(scope / "norm", channels, options.norm_groups, kNormEps),
      proj_in(read_projection(scope / "proj_in", channels, options.use_linear_projection)),
      proj_out(read_projection(scope / "proj_out", channels, options.use_linear_projection)) {
  for (int64_t i = 0; i < options.layers; ++i)
    transformer_blocks.emplace_back(scope / "transformer_blocks" / i, channels, options.heads,
                                    options.context_width);
}

at::Tensor Transformer2DModel::operator()(at::Tensor x, const nn::Rows& rows, nn::Context& context) const {
  // In channels-last the channels of a position are adjacent, so [B, C, h, W] is [B, n, C] without a copy.
  const auto tokens = [](const at::Tensor& image) { return image.flatten(2).transpose(1, 2); };
  at::Tensor hidden = proj_in(tokens(nn::group_norm(norm, x, rows)));
  for (const BasicTransformerBlock& block : transformer_blocks) block(hidden, rows, context);
  if (x.use_count() > 1) x = x.clone();
  tokens(x).add_(proj_out(hidden));
  return x;
}

}  // namespace tessera::models
