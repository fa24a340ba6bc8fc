// Two-dimensional convolutions of channels-last tensors. 2 in kh kw FLOPs for each element that comes out.
//
// Shapes: B samples, C channels (in, out), H x W size of the input.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>

#include "ops/group_norm.h"
#include "ops/halo.h"
#include "ops/winograd.h"
#include "ops/winograd_upsample.h"
#include "weights/scope.h"

namespace tessera::ops {

// How much of its input a convolution may have in memory a second time, normalised or with the rows around
// it, where its kernel does not do that as it reads. What comes out is the same up to rounding.
struct ConvBlocks {
  int64_t rows = 0;   // of the output at once; 0: no limit
  int64_t bytes = 0;  // of the copy, or of one row of the output, where that takes more; 0: no limit
  bool have_room_for(const at::Tensor& copy) const {
    return rows == 0 && (bytes == 0 || static_cast<int64_t>(copy.nbytes()) <= bytes);
  }
};

// What a convolution takes.
struct ConvInput {
  at::Tensor x;  // [B, in, H, W]; may be written to, where nobody else has it
  // Then what the norm makes of x, by `maps`, is convolved: x is never normalised as a whole where the kernel
  // does that as it reads.
  const GroupNorm* norm = nullptr;
  const ChannelMaps* maps = nullptr;
  std::optional<Halo> halo = {};  // where x is a part of a picture
  ConvBlocks blocks = {};
};

// A convolution with a square step and zero padding. Weights are laid out once, at load, as the backend wants
// them.
struct Conv2d {
  Conv2d() = default;
  // Reads `weight` [out, in, kernel, kernel] and `bias` [out].
  Conv2d(const weights::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
         int64_t padding = 0);
  // weight [out, in, kh, kw], bias [out]; padding: rows at top and bottom, columns at left and right.
  Conv2d(const at::Tensor& weight, at::Tensor bias, int64_t stride, std::array<int64_t, 2> padding);

  // -> [B, out, H', W'], channels-last, in the dtype of the weights; of no rows none, whatever is around
  // them.
  at::Tensor operator()(const at::Tensor& x) const { return (*this)(ConvInput{.x = x}); }
  at::Tensor operator()(ConvInput input) const;
  // sum += conv(input), in the accumulator where the backend can. sum [B, out, H', W'] channels-last.
  void add_to(at::Tensor& sum, const at::Tensor& x) const { add_to(sum, ConvInput{.x = x}); }
  void add_to(at::Tensor& sum, ConvInput input) const;

  // Of a 1x1 convolution to no more channels than come in, into the memory of x where nobody else has it,
  // some rows at a time.
  at::Tensor consume(at::Tensor x) const;

  int64_t in_channels = 0;
  int64_t out_channels = 0;
  std::array<int64_t, 2> kernel = {1, 1};
  int64_t stride = 1;
  std::array<int64_t, 2> padding = {0, 0};
  at::Tensor weight;  // in oneDNN's layout when `packed`; undefined when `winograd`
  at::Tensor bias;
  bool packed = false;
  std::optional<Winograd> winograd;
  std::string role = {};  // place of the weights in the checkpoint, for Operation

 private:
  friend struct Upsample2d;
  int64_t rows_out(const ConvInput& input) const;
  int64_t rows_at_once(const ConvInput& input) const;
  void add_whole(at::Tensor& sum, const at::Tensor& x, std::array<int64_t, 2> pad) const;
  at::Tensor apply(const at::Tensor& x, std::array<int64_t, 2> pad) const;
  at::Tensor apply_narrow(const at::Tensor& x,  // weights that the processor does not multiply as they are
                          std::array<int64_t, 2> pad) const;
  void tell_operation(int64_t inputs, const at::Tensor& y) const;  // of x: its number of elements
};

// Nearest-neighbour upsampling by two, then a 3x3 convolution with padding 1, without the upsampled tensor.
//
// The four pixels around a corner between input pixels see only the 2x2 input pixels that meet there, and
// taps that fall on the same input pixel add up: one 2x2 convolution with 4 C outputs does the work of the
// 3x3 convolution on the large image, with 4/9 of its products; by minimal filtering with 49/324 of them.
struct Upsample2d {
  // Reads `weight` [C, C, 3, 3] and `bias` [C].
  Upsample2d(const weights::Scope& scope, int64_t channels);
  // [B, C, H, W] -> [B, C, 2 H, 2 W]; `halo`: a row on each side, where x is a part of a picture; `blocks`:
  // of rows of x.
  at::Tensor operator()(const at::Tensor& x, const std::optional<Halo>& halo = {},
                        const ConvBlocks& blocks = {}) const;

  int64_t channels = 0;
  std::optional<WinogradUpsample> winograd;
  Conv2d whole;    // on other devices: on the upsampled tensor
  Conv2d corners;  // on the CPU where not `winograd`: [4 C, C, 2, 2]; outputs: upper left, upper right,
                   // lower left, lower right of the corner
  std::string role = {};  // place of the weights in the checkpoint, for Operation

 private:
  at::Tensor apply(const at::Tensor& x, const std::optional<Halo>& halo, const ConvBlocks& blocks) const;
};

}  // namespace tessera::ops
