// Convolutions and group norms over the local rows of an image.
//
// Shapes: B samples, C channels (in, out), h x W local rows and columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "nn/rows.h"
#include "ops/conv.h"
#include "ops/group_norm.h"

namespace tessera::nn {

// Applies a group norm, followed by SiLU if the norm has it, to x [B, C, h, W] (channels-last). `offset` [B,
// C] is added to x first if it is defined. May overwrite x if nothing else refers to it.
at::Tensor group_norm(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                      const at::Tensor& offset = {});

// Reads `weight` and `bias`.
struct Conv2d {
  Conv2d() = default;
  Conv2d(const weights::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
         int64_t padding = 0)
      : conv(scope, in, out, kernel, stride, padding) {}

  // x [B, in, h, W] at the scale of `rows` -> [B, out, h', W'], with stride 2 at the next coarser scale.
  // `always_fresh` exchanges the current neighbour rows even in steps that otherwise use those of the
  // previous step.
  at::Tensor operator()(const at::Tensor& x, const Rows& rows, bool always_fresh = false) const;
  // Convolves norm(x + offset). Takes over x: overwrites it if nothing else refers to it.
  at::Tensor operator()(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
                        const at::Tensor& offset = {}) const;
  // See ops::Conv2d::consume().
  at::Tensor consume(at::Tensor x) const { return conv.consume(std::move(x)); }
  // Adds the same convolution to `sum` [B, out, h', W'] in place.
  void add_to(at::Tensor& sum, const ops::GroupNorm& norm, at::Tensor x, const Rows& rows,
              const at::Tensor& offset = {}) const;

  ops::Conv2d conv;
};

// A 3x3 convolution of stride 2 over x padded with one row at the bottom and one column at the right, as in
// the VAE's encoder.
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

// The same for the scale `to`, whose next coarser scale is that of x. If a U-Net's size is odd, the last row
// or column is dropped before the convolution.
struct UpsampleToScale2d {
  UpsampleToScale2d(const weights::Scope& scope, int64_t channels);
  at::Tensor operator()(const at::Tensor& x, const Rows& rows, const Rows& to) const;

  // The convolution for odd sizes, built at its first use. Ranks that are threads may share a model, hence
  // the flag.
  struct Plain {
    std::once_flag is_laid_out;
    at::Tensor weight, bias;  // as read; released once `conv` holds them
    Conv2d conv;
  };

  Upsample2d doubling;
  std::shared_ptr<Plain> plain = std::make_shared<Plain>();
};

}  // namespace tessera::nn
