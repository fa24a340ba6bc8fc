// Operations on rows of tokens with vectors that scale, shift or gate them. Tensors [..., C] are contiguous,
// in fp32, bf16 or fp16.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace tessera::kernels {

// Vectors [C], one after another, each of which applies to the next `rows` rows.
struct RowVectors {
  const float* data;
  int64_t rows;
  // The end of the run of rows, starting at `row`, that share a vector; at most `end`.
  int64_t end_of(int64_t row, int64_t end) const { return std::min(end, (row / rows + 1) * rows); }
  const float* of(int64_t row, int64_t width) const { return data + row / rows * width; }
};

// out = layer_norm(x) * (1 + scale) + shift, where the norm has no weights. Statistics are fp32. `scale` and
// `shift` apply to equal runs of rows.
void modulated_layer_norm_into(const at::Tensor& out, const at::Tensor& x, RowVectors scale, RowVectors shift,
                               double epsilon);

// x += gate * y, rounded once.
void add_gated_into(const at::Tensor& x, const at::Tensor& y, RowVectors gate);

}  // namespace tessera::kernels
