// Linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/range.h"
#include "ops/choices.h"
#include "ops/gemm.h"
#include "weights/scope.h"

namespace tessera::ops {

// How a layer holds its weights.
enum class Packing {
  kForSpeed,  // in the layout that the backend's products like best, once, at load
  kAsStored   // as they lie in the file, where they need not be read before they are used: for what runs
              // rarely
};

struct LinearOptions {
  bool bias = true;
  Packing packing = Packing::kForSpeed;
};

struct Linear {
  Linear() = default;
  // Reads `weight` [out, in] and `bias` [out].
  Linear(const weights::Scope& scope, int64_t in, int64_t out, LinearOptions options = {});
  // From tensors [out, in] and [out] (or undefined).
  Linear(at::Tensor weight, at::Tensor bias, Packing packing = Packing::kForSpeed, std::string role = {});

  // x [..., in] -> [..., out], in the dtype of the weights. The activation is part of the product where the
  // backend can do that. 2 rows * in * out FLOPs.
  at::Tensor operator()(const at::Tensor& x, Activation activation = Activation::kNone) const;

  int64_t in_features = 0;
  int64_t out_features = 0;
  at::Tensor weight;  // [out, in] for ATen, else in the kernel's own layout
  at::Tensor bias;    // [out] or undefined
  LinearKernel kernel = LinearKernel::kAten;
  std::string role = {};  // place of the weights in the checkpoint, for Operation
};

at::Tensor activate(const at::Tensor& x, Activation activation);  // 1 FLOP an element

// Which outputs of the `out` that a layer has.
struct LayerPart {
  weights::Scope scope;
  int64_t out;
  Range outputs;
};

// Several layers of one input as one product: the block W[outputs, inputs] of each, one below the other.
// A layer that has a bias comes without it where `with_bias` is false (another rank adds it).
Linear read_linear(const std::vector<LayerPart>& layers, int64_t in, const Range& inputs,
                   LinearOptions options = {}, bool with_bias = true);

}  // namespace tessera::ops
