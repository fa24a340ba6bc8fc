// Two-dimensional convolutions of channels-last tensors. They take 2 in kh kw FLOPs per output element.
//
// Shapes: B samples, C channels (in, out), H x W size of the input.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>

#include "kernels/halo.h"
#include "kernels/winograd.h"
#include "kernels/winograd_upsample.h"
#include "ops/group_norm.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::ops {

using kernels::Halo;

// Limits how much of its input a convolution may copy, to normalise it or to join it with the rows around it,
// if its kernel does not do so while reading. Results may differ by rounding, because oneDNN picks kernels by
// size.
struct ConvBlocks {
  int64_t rows = 0;   // output rows at once; 0: no limit
  int64_t bytes = 0;  // bytes of the copy, but at least one output row; 0: no limit
  bool have_room_for(const at::Tensor& copy) const {
    return rows == 0 && (bytes == 0 || static_cast<int64_t>(copy.nbytes()) <= bytes);
  }
};

// The input of a convolution.
struct ConvInput {
  at::Tensor x;  // [B, in, H, W]; may be overwritten if nothing else refers to it
  // If set, the convolution applies to the norm of x, given by `maps`. x is not normalised as a whole if the
  // kernel normalises while reading.
  const GroupNorm* norm = nullptr;
  const ChannelMaps* maps = nullptr;
  std::optional<Halo> halo = {};  // set if x is a part of an image
  ConvBlocks blocks = {};
};

// A convolution with the same stride in both directions and zero padding. The weights are converted to the
// backend's layout once, at load.
struct Conv2d {
  Conv2d() = default;
  // Reads `weight` [out, in, kernel, kernel] and `bias` [out].
  Conv2d(const weights::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
         int64_t padding = 0);
  // weight [out, in, kh, kw], bias [out] or undefined. `padding` counts the rows at top and bottom and the
  // columns at left and right.
  Conv2d(const at::Tensor& weight, at::Tensor bias, int64_t stride, std::array<int64_t, 2> padding);
  // The same as a layer at `scope`; the weight is read through reading(), and may be a part of the stored
  // tensor.
  Conv2d(const weights::Scope& scope, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
         std::array<int64_t, 2> padding);
  // `scope` with the dtype in which such a layer reads its weight [out, in, kh, kw]: fp32 if minimal
  // filtering transforms it, so that it is rounded to the dtype of the layer only once.
  static weights::Scope reading(const weights::Scope& scope, at::IntArrayRef shape, int64_t stride,
                                std::array<int64_t, 2> padding);

  // -> [B, out, H', W'], channels-last, in the dtype of the weights. An input without rows gives no rows,
  // whatever the halo.
  at::Tensor operator()(const at::Tensor& x) const { return (*this)(ConvInput{.x = x}); }
  at::Tensor operator()(ConvInput input) const;
  // sum += conv(input), within the product if the backend can. sum [B, out, H', W'] must be channels-last.
  void add_to(at::Tensor& sum, const at::Tensor& x) const { add_to(sum, ConvInput{.x = x}); }
  void add_to(at::Tensor& sum, ConvInput input) const;

  // conv(x). A 1x1 convolution with out <= in writes its result, some rows at a time, into the memory of x if
  // nothing else refers to it.
  at::Tensor consume(at::Tensor x) const;

  int64_t in_channels = 0;
  int64_t out_channels = 0;
  std::array<int64_t, 2> kernel = {1, 1};
  int64_t stride = 1;
  std::array<int64_t, 2> padding = {0, 0};
  at::Tensor weight;  // in oneDNN's layout if `packed`; undefined if `winograd` or `product`
  at::Tensor bias;
  bool packed = false;
  std::optional<kernels::Winograd> winograd;
  // For 1x1 convolutions and those with strides on the CPU, with the weight as [out, kh kw in]. oneDNN lays
  // out weights for one image size, and at some other sizes does so again in every call, which takes many
  // times as long as the product.
  std::optional<Linear> product;
  at::Tensor room;        // for meta tensors that stand for the CPU: the memory of transformed weights beyond
                          // `weight`
  std::string role = {};  // key of the weights in the checkpoint, for Operation

 private:
  friend struct Upsample2d;
  // Whether the CPU computes such a layer by minimal filtering. `shape` is that of the weight.
  static bool is_filtered(const weights::Scope& scope, at::IntArrayRef shape, int64_t stride,
                          std::array<int64_t, 2> padding);
  int64_t rows_out(const ConvInput& input) const;
  int64_t rows_at_once(const ConvInput& input) const;
  // Whether two additional products of a few rows cost less than a copy of x with the rows around it.
  bool computes_edges_separately(const ConvInput& input) const;
  // Convolves x as if it were a whole image, and computes the edge rows, which read the halo, separately.
  // Adds to `sum` if it is defined.
  at::Tensor with_edges(const at::Tensor& sum, ConvInput input) const;
  void add_whole(at::Tensor& sum, const at::Tensor& x, std::array<int64_t, 2> pad) const;
  at::Tensor apply(const at::Tensor& x, std::array<int64_t, 2> pad) const;
  at::Tensor apply_narrow(const at::Tensor& x,  // for weights in a narrow dtype
                          std::array<int64_t, 2> pad) const;
  // For meta tensors that stand for the CPU: whether a kernel would copy all of its input.
  bool needs_whole_input(const ConvInput& input) const;
  void record_operation(at::IntArrayRef x, const at::Tensor& y) const;  // `x`: the shape of the input
  // y is the result, or the `sum` that it is added to.
  void record_values(const ConvInput& input, const at::Tensor& sum, const at::Tensor& y) const;
};

// Nearest-neighbour upsampling by two followed by a 3x3 convolution with padding 1, without the upsampled
// tensor.
//
// The four output pixels around a corner between input pixels depend only on the 2x2 input pixels that meet
// there, and taps that fall on the same input pixel add up. One 2x2 convolution with 4 C outputs therefore
// replaces the 3x3 convolution on the large image, with 4/9 of its products; minimal filtering needs 49/324
// of them.
struct Upsample2d {
  // Reads `weight` [C, C, 3, 3] and `bias` [C].
  Upsample2d(const weights::Scope& scope, int64_t channels);
  // [B, C, H, W] -> [B, C, 2 H, 2 W]. `halo` holds a row on each side if x is a part of an image; `blocks`
  // counts rows of x.
  at::Tensor operator()(const at::Tensor& x, const std::optional<Halo>& halo = {},
                        const ConvBlocks& blocks = {}) const;

  int64_t channels = 0;
  std::optional<kernels::WinogradUpsample> winograd;
  Conv2d whole;    // on other devices: applied to the upsampled tensor
  Conv2d corners;  // on the CPU without `winograd`: [4 C, C, 2, 2]; its outputs are the upper left, upper
                   // right, lower left and lower right pixel of the corner
  std::string role = {};  // key of the weights in the checkpoint, for Operation

 private:
  at::Tensor apply(const at::Tensor& x, const std::optional<Halo>& halo, const ConvBlocks& blocks) const;
};

}  // namespace tessera::ops
