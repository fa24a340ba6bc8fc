// A sampler that subtracts a tenth of the prediction in each step, whatever the timestep.
#pragma once

#include <utility>
#include <vector>

#include "samplers/sampler.h"

namespace tessera::samplers {

struct PlainSampler : Sampler {
  explicit PlainSampler(std::vector<double> timesteps) { timesteps_ = std::move(timesteps); }
  at::Tensor scale_model_input(const at::Tensor& z, int64_t) const override { return z; }
  bool needs_noise(int64_t /*index*/) const override { return false; }
  at::Tensor step(const at::Tensor& output, int64_t, const at::Tensor& z, SamplerState&,
                  const at::Tensor&) const override {
    return z - 0.1 * output;
  }
  at::Tensor predicted_sample(const at::Tensor& output, int64_t, const at::Tensor&) const override {
    return output;
  }
};

}  // namespace tessera::samplers
