// Convolutions and group norms over the rows of a picture that are at hand.
//
// Shapes: B samples, C channels (in, out), h x W of the picture at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "nn/rows.h"
#include "ops/conv.h"
#include "ops/group_norm.h"

namespace tessera::nn {

// A group norm, then SiLU where it has that: x [B, C, h, W] channels-last, into its memory where nobody else
// has it. `offset` [B, C]: is added to x first, where it is defined.
at::Tensor group_norm(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                      const at::Tensor& offset = {});

// Names of the weights: `weight` and `bias`.
struct Conv2d {
  Conv2d() = default;
  Conv2d(const weights::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
         int64_t padding = 0)
      : conv(scope, in, out, kernel, stride, padding) {}

  // x [B, in, h, W] at the scale of `rows` -> [B, out, h', W'], with stride 2 at the next coarser one.
  // `always_fresh`: sees the rows of others as they are now, whatever the step leaves as it was.
  at::Tensor operator()(const at::Tensor& x, const Rows& rows, bool always_fresh = false) const;
  // Of the norm of x. Takes x over: its memory is written to when nobody else has it.
  at::Tensor operator()(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                        const at::Tensor& offset = {}) const;
  // As ops::Conv2d::consume().
  at::Tensor consume(at::Tensor x) const { return conv.consume(std::move(x)); }
  // sum [B, out, h', W'] += that.
  void add_to(at::Tensor& sum, const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
              const at::Tensor& offset = {}) const;

  ops::Conv2d conv;
};

// A 3x3 convolution of stride 2 after padding one row at the bottom and one column at the right, as the VAE's
// encoder has it.
struct PaddedDownsample2d {
  PaddedDownsample2d(const weights::Scope& scope, int64_t channels)
      : conv(scope / "conv", channels, channels, 3, 2) {}
  at::Tensor operator()(const at::Tensor& x, const Rows& rows) const;  // [B, C, h, W] -> [B, C, h / 2, W / 2]

  ops::Conv2d conv;
};

// Nearest-neighbour upsampling by two, then a 3x3 convolution.
struct Upsample2d {
  Upsample2d(const weights::Scope& scope, int64_t channels);
  at::Tensor operator()(const at::Tensor& x, const Rows& rows) const;  // [B, C, h, W] -> [B, C, 2 h, 2 W]

  ops::Upsample2d upsample;
};

// The same to any scale whose next coarser one is that of x: of a U-Net's odd sizes the last row, or column,
// is left out before the convolution.
struct UpsampleToScale2d {
  UpsampleToScale2d(const weights::Scope& scope, int64_t channels);
  at::Tensor operator()(const at::Tensor& x, const Rows& rows, const Rows& to) const;

  // For odd sizes, laid out when the first of them comes: ranks that are threads may share a model.
  struct Plain {
    std::once_flag is_laid_out;
    at::Tensor weight, bias;  // as they were read, until `conv` has them
    Conv2d conv;
  };

  Upsample2d doubling;
  std::shared_ptr<Plain> plain = std::make_shared<Plain>();
};

}  // namespace tessera::nn
