// Embeddings of timesteps, sizes and positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::nn {

// Sinusoidal embedding of scalars (DDPM, arXiv:2006.11239): the cosines, then the sines, of value * 10000^(-i
// / (dim / 2)), then a zero if dim is odd. values [n] fp32 -> [n, dim] fp32, on the same device.
at::Tensor sinusoidal_embedding(const at::Tensor& values, int64_t dim);

// Embedding of guidance weights w, which are the guidance scales minus 1 (arXiv:2210.03142): the sines, then
// the cosines, of 1000 w * 10000^(-i / (dim / 2 - 1)), then a zero if dim is odd. weights [n] fp32 -> [n,
// dim] fp32, on the same device. The frequencies are not finite if dim is 2 or 3.
at::Tensor guidance_embedding(const at::Tensor& weights, int64_t dim);

// diffusers' TimestepEmbedding: linear_1, SiLU, linear_2 applied to a sinusoidal embedding. If `condition` is
// positive, cond_proj turns a condition of that many numbers into what the caller adds to that embedding.
struct TimestepEmbedding {
  TimestepEmbedding(const weights::Scope& scope, int64_t in, int64_t out, int64_t condition = 0,
                    ops::LinearOptions options = {});
  at::Tensor operator()(const at::Tensor& x) const;  // [N, in] -> [N, out]

  ops::Linear linear_1, linear_2;
  std::optional<ops::Linear> cond_proj;  // [N, condition] -> [N, in]
};

// 2-D sine-cosine position embedding (ViT / MAE, arXiv:2111.06377) of a grid of rows x columns patches: [rows
// * columns, dim] fp32. Positions are scaled so that every grid spans the range of a base_size x base_size
// one. The first half of dim encodes the column, the second half the row.
at::Tensor sincos_position_embedding(int64_t dim, int64_t rows, int64_t columns, int64_t base_size,
                                     double interpolation_scale);

}  // namespace tessera::nn
