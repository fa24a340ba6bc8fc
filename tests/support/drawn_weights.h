// Weights for tests: every one exists, and a function draws its numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "weights/source.h"

namespace tessera::weights {

class DrawnWeights : public Source {
 public:
  // The whole weight, fp32. The generator is seeded by the key.
  using Draw = at::Tensor (*)(const std::string& key, at::IntArrayRef shape, at::Generator& generator);

  explicit DrawnWeights(Draw draw) : draw_(draw) {}

  bool has(const std::string& /*key*/) const override { return true; }
  at::Tensor load(const std::string& key, at::IntArrayRef shape, at::ScalarType dtype,
                  at::ArrayRef<Slice> slices, at::Device /*device*/) override {
    at::Tensor part = stored(key, shape);
    for (const Slice& slice : slices) part = part.narrow(slice.dim, slice.begin, slice.length);
    return part.to(dtype).contiguous();
  }
  at::Tensor stored(const std::string& key, at::IntArrayRef shape) override {
    // Drawing takes longer than what tests do with the numbers. Each rank is a thread, and shares none.
    thread_local std::map<std::tuple<Draw, std::string, std::vector<int64_t>>, at::Tensor> drawn;
    at::Tensor& tensor = drawn[{draw_, key, shape.vec()}];
    if (!tensor.defined()) {
      auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(key));
      tensor = draw_(key, shape, generator);
    }
    return tensor;
  }

 private:
  Draw draw_;
};

}  // namespace tessera::weights
