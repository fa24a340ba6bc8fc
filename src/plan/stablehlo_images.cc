// Convolutions and group norms in StableHLO. Images are [B, C, H, W].
#include <fmt/ranges.h>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

MlirValue silu_if(MlirBuilder& b, bool is_silu, const MlirValue& x) {
  return is_silu ? b.binary("multiply", x, b.unary("logistic", x)) : x;
}

// The sum of products in fp32, and the bias of each channel.
MlirValue convolved(MlirBuilder& b, const MlirValue& x, const MlirValue& weight,
                    const std::optional<MlirValue>& bias, int64_t stride, const Sizes64& rows,
                    int64_t columns) {
  const auto out = [&](int64_t size, int64_t pads, int64_t taps) {
    return (size + pads - taps) / stride + 1;
  };
  const Sizes64 sizes = {x.size(0), weight.size(0), out(x.size(2), rows[0] + rows[1], weight.size(2)),
                         out(x.size(3), 2 * columns, weight.size(3))};
  const MlirValue y = b.convolution(b.convert(x, weight.type.dtype), weight, stride,
                                    {{{rows[0], rows[1]}, {columns, columns}}}, {sizes, at::kFloat});
  if (!bias) return y;
  return b.binary("add", y, b.broadcast(b.convert(*bias, at::kFloat), sizes, {1}));
}

// [B, C] or [C] in the shape of x
MlirValue over_positions(MlirBuilder& b, const MlirValue& vectors, const MlirValue& x) {
  return b.broadcast(vectors, x.sizes(), vectors.dims() == 1 ? Sizes64{1} : Sizes64{0, 1});
}

MlirValue mapped(MlirBuilder& b, const MlirValue& x, const MlirValue& mean, const MlirValue& scale,
                 const MlirValue& bias, bool is_silu) {
  const MlirValue centred = b.binary("subtract", x, over_positions(b, mean, x));
  const MlirValue scaled = b.binary("multiply", centred, over_positions(b, scale, x));
  return silu_if(b, is_silu, b.binary("add", scaled, over_positions(b, bias, x)));
}

// Reads x, weight, bias, the addend of the result, rows above and below, and the parameters of a norm: mean,
// scale, bias.
void conv2d(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const auto pad = attribute<int64_t>(node, "padding_rows");
  MlirValue x = lowering.read(node, 0);
  if (const auto mean = lowering.maybe_read(node, 6)) {
    const MlirValue normed = mapped(b, b.convert(x, at::kFloat), *mean, lowering.read(node, 7),
                                    lowering.read(node, 8), attribute<bool>(node, "silu"));
    x = b.convert(normed, x.type.dtype);
  }
  std::vector<MlirValue> rows = {x};
  const auto above = lowering.maybe_read(node, 4), below = lowering.maybe_read(node, 5);
  if (above) rows.insert(rows.begin(), *above);
  if (below) rows.push_back(*below);
  MlirValue y = convolved(b, b.concat(rows, 2), lowering.read(node, 1), lowering.maybe_read(node, 2),
                          attribute<int64_t>(node, "stride"), {above ? 0 : pad, below ? 0 : pad},
                          attribute<int64_t>(node, "padding_columns"));
  if (const auto sum = lowering.maybe_read(node, 3)) y = b.binary("add", y, b.convert(*sum, at::kFloat));
  lowering.write(node, 0, y);
}

// Reads x, weight, bias, a row above and one below.
void upsample2d_conv2d(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = lowering.read(node, 0);
  const TensorShape row{{x.size(0), x.size(1), 1, x.size(3)}, x.type.dtype};
  const auto or_zeros = [&](size_t i) {
    const auto found = lowering.maybe_read(node, i);
    return found ? *found : b.filled(0, row);
  };
  const MlirValue large = doubled_image(b, b.concat({or_zeros(3), x, or_zeros(4)}, 2));
  const MlirValue needed =
      b.slice(large, {0, 0, 1, 0}, {x.size(0), x.size(1), large.size(2) - 2, large.size(3)});
  lowering.write(node, 0,
                 convolved(b, needed, lowering.read(node, 1), lowering.maybe_read(node, 2), 1, {0, 0}, 1));
}

// Mean and variance of x [B, C, H, W] over groups of channels, [B, groups] each.
std::pair<MlirValue, MlirValue> moments_of(MlirBuilder& b, const MlirValue& x, int64_t groups) {
  const int64_t count = x.size(1) / groups * x.size(2) * x.size(3);
  const MlirValue rows = b.reshape(x, {x.size(0), groups, count});
  const MlirValue mean = b.binary("divide", b.reduce_keeping("add", rows, {2}), static_cast<double>(count));
  const MlirValue centred = b.binary("subtract", rows, mean);
  const MlirValue squares = b.reduce_keeping("add", b.binary("multiply", centred, centred), {2});
  const Sizes64 sizes = {x.size(0), groups};
  return {b.reshape(mean, sizes), b.reshape(b.binary("divide", squares, static_cast<double>(count)), sizes)};
}

// [B, groups] -> [B, C]
MlirValue by_channel(MlirBuilder& b, const MlirValue& of_groups, int64_t channels) {
  const int64_t batch = of_groups.size(0), groups = of_groups.size(1);
  return b.reshape(b.broadcast(of_groups, {batch, groups, channels / groups}, {0, 1}), {batch, channels});
}

void group_norm(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = lowering.read_wide(node, 0), weight = lowering.read(node, 1);
  const auto [mean, variance] = moments_of(b, x, attribute<int64_t>(node, "groups"));
  const MlirValue inverse = b.unary("rsqrt", b.binary("add", variance, attribute<double>(node, "epsilon")));
  const MlirValue scale = b.binary("multiply", by_channel(b, inverse, x.size(1)), weight);
  lowering.write(node, 0,
                 mapped(b, x, by_channel(b, mean, x.size(1)), scale, lowering.read(node, 2),
                        attribute<bool>(node, "silu")));
}

// Reads x and an offset [B, C] that is added first; returns [B, groups, 2] in fp64.
void group_moments(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  MlirValue x = lowering.read_wide(node, 0);
  if (const auto offset = lowering.maybe_read(node, 1))
    x = b.binary("add", x, over_positions(b, b.convert(*offset, at::kFloat), x));
  const auto [mean, variance] = moments_of(b, x, attribute<int64_t>(node, "groups"));
  const Sizes64 one = {mean.size(0), mean.size(1), 1};
  lowering.write(node, 0, b.concat({b.reshape(mean, one), b.reshape(variance, one)}, 2));
}

// Reads moments, an offset and the weight; returns the mean and the scale of each channel.
void channel_maps(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue moments = lowering.read(node, 0), weight = lowering.read(node, 2);
  const auto part = [&](int64_t i) {
    const Sizes64 sizes = {moments.size(0), moments.size(1)};
    return b.reshape(b.slice(moments, {0, 0, i}, {sizes[0], sizes[1], 1}), sizes);
  };
  const MlirValue inverse = b.unary("rsqrt", b.binary("add", part(1), attribute<double>(node, "epsilon")));
  MlirValue mean = by_channel(b, part(0), weight.size(0));
  if (const auto offset = lowering.maybe_read(node, 1))
    mean = b.binary("subtract", mean, b.convert(*offset, mean.type.dtype));
  lowering.write(node, 0, mean);
  const MlirValue scale = by_channel(b, inverse, weight.size(0));
  lowering.write(node, 1, b.binary("multiply", scale, b.convert(weight, scale.type.dtype)));
}

void apply_maps(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0,
                 mapped(lowering.builder(), lowering.read_wide(node, 0), lowering.read(node, 1),
                        lowering.read(node, 2), lowering.read(node, 3), attribute<bool>(node, "silu")));
}

}  // namespace

MlirValue doubled_image(MlirBuilder& b, const MlirValue& x) {
  const Sizes64 sizes = {x.size(0), x.size(1), x.size(2), 2, x.size(3), 2};
  return b.reshape(b.broadcast(x, sizes, {0, 1, 2, 4}), {x.size(0), x.size(1), 2 * x.size(2), 2 * x.size(3)});
}

const LoweringRules& image_rules() {
  static const LoweringRules rules = {{"conv2d", conv2d},
                                      {"upsample2d_conv2d", upsample2d_conv2d},
                                      {"group_norm", group_norm},
                                      {"group_moments", group_moments},
                                      {"channel_maps", channel_maps},
                                      {"apply_maps", apply_maps}};
  return rules;
}

}  // namespace tessera::plan
