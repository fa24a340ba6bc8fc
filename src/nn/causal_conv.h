// Convolutions and group norms of videos, in which no frame sees later ones (as in MAGVIT-v2,
// arXiv:2310.05737). Frames are the samples of the images that the layers of nn/conv.h take, so ranks divide
// rows as there.
//
// Shapes: T frames of one clip, C channels (in, out), h x W local rows and columns; channels-last.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/rows.h"
#include "ops/conv.h"
#include "ops/group_norm.h"

namespace tessera::nn {

// A convolution with a kernel of k x k x k. Frames before the first are zeros: k - 1 of them, one fewer with
// a stride of 2 in time. Rows and columns are padded on both sides.
class CausalConv3d {
 public:
  struct Options {
    int64_t kernel = 3, time_stride = 1;
    bool bias = true;
  };

  CausalConv3d() = default;
  // Reads `weight` [out, in, k, k, k] and `bias` [out].
  CausalConv3d(const weights::Scope& scope, int64_t in, int64_t out, Options options);

  // x [T, in, h, W] -> [T', out, h, W]. All ranks must call this together.
  at::Tensor operator()(const at::Tensor& x, const Rows& rows) const;

 private:
  std::vector<ops::Conv2d> taps_;  // by frame, the earliest first; the last has the bias
  int64_t time_stride_ = 1;
};

// The norm of x [T, C, h, W] with the statistics of the whole clip. May overwrite x if nothing else refers to
// it. All ranks must call this together.
at::Tensor clip_norm(const ops::GroupNorm& norm, at::Tensor x, const Rows& rows);

}  // namespace tessera::nn
