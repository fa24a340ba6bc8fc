// Linear layers, whole or split over a group of ranks (Megatron-LM, arXiv:1909.08053: columns, then rows).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/group.h"
#include "weights/scope.h"

namespace tessera::nn {

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

// The rows of the weight (its outputs) in `outputs`, of several layers with one input as one product: the
// outputs stand side by side, in the order of `scopes`. x [..., in] -> [..., scopes.size() * outputs.length].
Linear column_parallel(const std::vector<weights::Scope>& scopes, int64_t in, int64_t out,
                       const parallel::Range& outputs);

// The columns of the weight (its inputs) in `inputs`: x [..., inputs.length] -> [..., out]. What the ranks of
// `group` get is to be summed; only rank 0 adds the bias.
Linear row_parallel(const weights::Scope& scope, int64_t in, int64_t out, const parallel::Range& inputs,
                    const parallel::Group& group);

}  // namespace tessera::nn
