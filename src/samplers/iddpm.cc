#include "samplers/iddpm.h"

#include <ATen/Functions.h>

#include <cmath>

#include "core/error.h"

namespace tessera::samplers {

Iddpm::Iddpm(int64_t steps, int64_t num_train_timesteps) {
  TESSERA_CHECK(steps >= 1 && steps <= num_train_timesteps, "{} steps of {}", steps, num_train_timesteps);
  // Betas rise linearly, by the same total for any number of timesteps.
  const auto all = static_cast<double>(num_train_timesteps);
  const double first = 0.0001 * 1000 / all, last = 0.02 * 1000 / all;
  std::vector<double> products;
  for (int64_t i = 0; i < num_train_timesteps; ++i) {
    const double share = num_train_timesteps == 1 ? 0 : static_cast<double>(i) / (all - 1);
    products.push_back((products.empty() ? 1 : products.back()) * (1 - first - share * (last - first)));
  }
  // The timesteps are as far apart as possible and include the first and the last one.
  const double stride = steps == 1 ? 0 : (all - 1) / static_cast<double>(steps - 1);
  for (int64_t i = steps - 1; i >= 0; --i) {
    const double timestep = std::nearbyint(static_cast<double>(i) * stride);
    timesteps_.push_back(timestep);
    alphas_cumprod_.push_back(products[static_cast<size_t>(timestep)]);
  }
  alphas_cumprod_.push_back(1);
}

at::Tensor Iddpm::step(const at::Tensor& model_output, int64_t index, const at::Tensor& z,
                       SamplerState& /*state*/, const at::Tensor& noise) const {
  TESSERA_CHECK(model_output.size(1) == 2 * z.size(1), "{} channels of noise and variance for {}",
                model_output.size(1), z.size(1));
  const auto i = static_cast<size_t>(index);
  const double product = alphas_cumprod_[i], next = alphas_cumprod_[i + 1];
  const double alpha = product / next, beta = 1 - alpha;
  at::Tensor mean = (beta * std::sqrt(next) / (1 - product)) * predicted_sample(model_output, index, z) +
                    ((1 - next) * std::sqrt(alpha) / (1 - product)) * z;
  if (index + 1 == steps()) return mean;
  const double most = std::log(beta), least = std::log(beta * (1 - next) / (1 - product));
  const auto parts = model_output.chunk(2, 1);
  const at::Tensor log_variance = least + (parts[1] + 1) * ((most - least) / 2);
  return mean + (0.5 * log_variance).exp() * noise;
}

at::Tensor Iddpm::predicted_sample(const at::Tensor& model_output, int64_t index, const at::Tensor& z) const {
  const double product = alphas_cumprod_[static_cast<size_t>(index)];
  return (z - std::sqrt(1 - product) * model_output.chunk(2, 1)[0]) / std::sqrt(product);
}

// The public code counts the remaining steps, and compares them with the mask's share of all steps. A frame
// that enters in a step is changed by it, but has timestep 0 in the model.
FrameMasks Iddpm::masks(const at::Tensor& mask, int64_t index) const {
  const at::Tensor share = (mask * steps()).to(at::kInt);
  const int64_t left = steps() - 1 - index;
  return {.entering = share == left, .changing = share >= left, .denoised = share > left};
}

at::Tensor Iddpm::add_noise(const at::Tensor& z, const at::Tensor& noise, int64_t index) const {
  const double product = alphas_cumprod_[static_cast<size_t>(index)];
  return std::sqrt(product) * z + std::sqrt(1 - product) * noise;
}

}  // namespace tessera::samplers
