// Embeddings of time, size and place.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::nn {

// Sinusoidal embedding of scalars (DDPM, arXiv:2006.11239): cosines, then sines, of value * 10000^(-i / (dim
// / 2)). values [n] fp32 -> [n, dim] fp32, on their device.
at::Tensor sinusoidal_embedding(const at::Tensor& values, int64_t dim);

// diffusers' TimestepEmbedding: linear_1, SiLU, linear_2 on a sinusoidal embedding.
struct TimestepEmbedding {
  TimestepEmbedding(const weights::Scope& scope, int64_t in, int64_t out);
  at::Tensor operator()(const at::Tensor& x) const;  // [N, in] -> [N, out]

  ops::Linear linear_1, linear_2;
};

// 2-D sine-cosine position embedding (ViT / MAE, arXiv:2111.06377) of a grid of rows x columns patches,
// scaled so that any grid spans the places of one of base_size x base_size: [rows * columns, dim] fp32. The
// first half of dim encodes the column, the second the row.
at::Tensor sincos_position_embedding(int64_t dim, int64_t rows, int64_t columns, int64_t base_size,
                                     double interpolation_scale);

}  // namespace tessera::nn
