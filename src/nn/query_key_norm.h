// Norms of queries and keys before attention (arXiv:2302.05442), per head or across all heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "nn/tensor_parallel.h"
#include "ops/heads.h"

namespace tessera::nn {

// RMS norm of each head, with weights that all heads share: reads `weight` [D].
struct HeadNorm {
  HeadNorm(const weights::Scope& scope, int64_t depth, double epsilon);
  // x [B, n, H * D]. With `angles` (nn/rotary.h), also rotates it, after the norm or before.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& angles = {}, bool rotates_first = false,
                        ops::RotaryPairs pairs = ops::RotaryPairs::kAdjacent) const;

  at::Tensor weight;  // fp32 [D]
  double epsilon;
  std::string role;
};

// RMS norm across all heads: reads this rank's part of `weight` [H * D]. The mean also covers the heads that
// other ranks hold, so all ranks of the scope must call it together.
class AcrossHeadsNorm {
 public:
  AcrossHeadsNorm(const weights::Scope& scope, Split heads, double epsilon);
  at::Tensor operator()(const at::Tensor& x) const;  // [B, n, local heads * D]

 private:
  at::Tensor weight_;  // fp32 [local heads * D]
  Split heads_;
  double epsilon_;
  at::ScalarType dtype_;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

}  // namespace tessera::nn
