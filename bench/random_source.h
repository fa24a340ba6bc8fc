// Weights for benchmarks: every weight that a model asks for exists, and is random.
#pragma once

#include <ATen/Functions.h>

#include <cmath>
#include <string>

#include "weights/source.h"

namespace tessera {

class RandomSource final : public weights::Source {
 public:
  bool has(const std::string& /*key*/) const override { return false; }
  // Scaled so that activations stay of one size. Ranks draw different values.
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<weights::Slice> slices, at::Device device) override {
    const std::vector<int64_t> sizes = weights::sliced_shape(key, shape, slices);
    int64_t inputs = 1;
    for (size_t dim = 1; dim < shape.size(); ++dim) inputs *= shape[dim];
    return (at::randn(sizes) / std::sqrt(static_cast<double>(inputs))).to(device, dtype);
  }
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override {
    return load(key, shape, at::kFloat, {}, at::kCPU);
  }
};

}  // namespace tessera
