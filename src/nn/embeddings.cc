#include "nn/embeddings.h"

#include <cmath>

#include "core/device.h"

namespace tessera::nn {

at::Tensor sinusoidal_embedding(const at::Tensor& values, int64_t dim) {
  const int64_t half = dim / 2;
  const at::Tensor exponent =
      at::arange(half, values.options()) * -std::log(10000.0) / static_cast<double>(half);
  const at::Tensor angle = values.unsqueeze(1) * at::exp(exponent).unsqueeze(0);
  const at::Tensor pairs = at::concat({at::cos(angle), at::sin(angle)}, 1);
  return dim % 2 == 0 ? pairs : at::constant_pad_nd(pairs, {0, 1});
}

at::Tensor guidance_embedding(const at::Tensor& weights, int64_t dim) {
  const int64_t half = dim / 2;
  // Each step rounds to fp32 as in diffusers: the angles are so large that another rounding would be visible.
  const at::Tensor step = at::log(at::full({}, 10000.0, weights.options())) / (half - 1);
  const at::Tensor frequency = at::exp(at::arange(half, weights.options()) * -step);
  const at::Tensor angle = (weights * 1000.0).unsqueeze(1) * frequency.unsqueeze(0);
  const at::Tensor pairs = at::concat({at::sin(angle), at::cos(angle)}, 1);
  return dim % 2 == 0 ? pairs : at::constant_pad_nd(pairs, {0, 1});
}

TimestepEmbedding::TimestepEmbedding(const weights::Scope& scope, int64_t in, int64_t out, int64_t condition,
                                     ops::LinearOptions options)
    : linear_1(scope / "linear_1", in, out, options), linear_2(scope / "linear_2", out, out, options) {
  if (condition > 0) cond_proj.emplace(scope / "cond_proj", condition, in, ops::LinearOptions{.bias = false});
}

at::Tensor TimestepEmbedding::operator()(const at::Tensor& x) const {
  return linear_2(linear_1(x, ops::Activation::kSilu));
}

at::Tensor sincos_position_embedding(int64_t dim, int64_t rows, int64_t columns, int64_t base_size,
                                     double interpolation_scale) {
  // Positions are rounded to fp32 as in training; the angles need double.
  const auto places = [&](int64_t count) {
    const double spread = static_cast<double>(count) / static_cast<double>(base_size);
    return as_constant((at::arange(count, at::kFloat) / spread / interpolation_scale).to(at::kDouble));
  };
  const at::Tensor exponent = at::arange(dim / 4, at::kDouble) / (static_cast<double>(dim) / 4.0);
  const at::Tensor frequency = as_constant(at::pow(10000.0, exponent).reciprocal());
  const auto encode = [&](const at::Tensor& place) {
    const at::Tensor angle = at::outer(place, frequency);
    return at::concat({at::sin(angle), at::cos(angle)}, 1).to(at::kFloat);  // [count, dim / 2]
  };
  const at::Tensor column = encode(places(columns)).unsqueeze(0).expand({rows, columns, dim / 2});
  const at::Tensor row = encode(places(rows)).unsqueeze(1).expand({rows, columns, dim / 2});
  return at::concat({column, row}, 2).reshape({rows * columns, dim});
}

}  // namespace tessera::nn
