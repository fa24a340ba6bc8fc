// Linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"
#include "weights/scope.h"

namespace tessera::ops {

enum class Activation { kNone, kGelu, kGeluTanh, kRelu, kSilu };

struct Linear {
  Linear() = default;
  // Reads `weight` [out, in] and, when there is one, `bias` [out].
  Linear(const weights::Scope& scope, int64_t in, int64_t out);
  // From tensors [out, in] and [out] (or undefined).
  Linear(at::Tensor weight, at::Tensor bias);

  // x [..., in] -> [..., out], in the dtype of the weights. The activation is part of the product where the
  // backend can do that.
  at::Tensor operator()(const at::Tensor& x, Activation activation = Activation::kNone) const;

  int64_t in_features = 0;
  int64_t out_features = 0;
  at::Tensor weight;  // [out, in]; in oneDNN's own layout when `packed`
  at::Tensor bias;    // [out] or undefined
  bool packed = false;
};

at::Tensor activate(const at::Tensor& x, Activation activation);

// Several layers of one input as one product: the block W[outputs, inputs] of each, one below the other.
// Without biases where `with_bias` is false (another rank adds them).
Linear read_linear(const std::vector<weights::Scope>& scopes, int64_t in, int64_t out, const Range& outputs,
                   const Range& inputs, bool with_bias = true);

}  // namespace tessera::ops
