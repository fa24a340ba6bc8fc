// Linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/range.h"
#include "kernels/activation.h"
#include "kernels/choices.h"
#include "weights/scope.h"

namespace tessera::ops {

using kernels::Activation;
using kernels::LinearKernel;

// How a layer stores its weights.
enum class Packing {
  kForSpeed,  // in the layout that suits the backend's products best, converted once at load
  kAsStored   // as in the file, and not necessarily read before use: for layers that rarely run
};

struct LinearOptions {
  bool bias = true;
  Packing packing = Packing::kForSpeed;
};

struct Linear {
  Linear() = default;
  // Reads `weight` [out, in] and `bias` [out].
  Linear(const weights::Scope& scope, int64_t in, int64_t out, LinearOptions options = {});
  // Takes tensors [out, in] and [out] (or undefined).
  Linear(at::Tensor weight, at::Tensor bias, Packing packing = Packing::kForSpeed, std::string role = {});

  // x [..., in] -> [..., out], in the dtype of the weights. The activation is fused into the product if the
  // backend can do that. 2 rows * in * out FLOPs.
  at::Tensor operator()(const at::Tensor& x, Activation activation = Activation::kNone) const;
  // The same as a part of another operation, which reports the work.
  at::Tensor multiply(const at::Tensor& x, Activation activation = Activation::kNone) const;

  int64_t in_features = 0;
  int64_t out_features = 0;
  at::Tensor weight;  // [out, in] for ATen, else in the kernel's layout
  at::Tensor bias;    // [out] or undefined
  LinearKernel kernel = LinearKernel::kAten;
  std::string role = {};  // key of the weights in the checkpoint, for Operation
};

at::Tensor activate(const at::Tensor& x, Activation activation);  // 1 FLOP per element

// The outputs of a layer, among its `out`, that a rank holds.
struct LayerPart {
  weights::Scope scope;
  int64_t out;
  Range outputs;
};

// Reads several layers of one input as one product: the blocks W[outputs, inputs] of the layers, one below
// the other. `inputs` are ranges of the layers' `in` inputs, in the order in which the product takes them.
// Biases are left out if `with_bias` is false (another rank adds them).
Linear read_linear(const std::vector<LayerPart>& layers, int64_t in, const std::vector<Range>& inputs,
                   LinearOptions options = {}, bool with_bias = true);

}  // namespace tessera::ops
