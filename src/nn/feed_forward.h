// The gated feed-forward layer of transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/tensor_parallel.h"

namespace tessera::nn {

// GEGLU (arXiv:2002.05202): (x W1 * gelu(x W2)) W3. The weights are named as in diffusers' FeedForward:
// net.0.proj holds W1 above W2, net.2 holds W3.
class GegluFeedForward {
 public:
  GegluFeedForward(const weights::Scope& scope, int64_t width, int64_t inner);

  at::Tensor operator()(const at::Tensor& x) const;  // [B, S, width]

 private:
  ColumnParallel in_;
  RowParallel out_;
};

}  // namespace tessera::nn
