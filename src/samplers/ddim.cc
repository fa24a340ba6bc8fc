// Denoising diffusion implicit models (https://arxiv.org/abs/2010.02502, eq. 12 and 16): deterministic with
// eta = 0, as noisy as the diffusion process with eta = 1.
#include "samplers/solvers.h"

#include <cmath>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// The standard deviations of the noise after a step: of the fresh noise (sigma_t in the paper) and of
// epsilon.
struct Noises {
  double fresh, epsilon;
};

Noises noises(double alpha_cumprod, double next_alpha_cumprod, double eta) {
  if (eta == 0) return {0, std::sqrt(1 - next_alpha_cumprod)};
  // Uses float32 and the operations of diffusers: from pure noise with eta = 1, only their rounding error
  // remains for epsilon, and it must not become negative.
  const at::Tensor product = at::scalar_tensor(alpha_cumprod, at::kFloat);
  const at::Tensor next = at::scalar_tensor(next_alpha_cumprod, at::kFloat);
  const at::Tensor fresh = ((1 - next) / (1 - product) * (1 - product / next)).pow(0.5) * eta;
  const at::Tensor epsilon = (1 - next - fresh.square()).clamp_min(0).pow(0.5);
  return {fresh.item<double>(), epsilon.item<double>()};
}

// z' = sqrt(a') x_0 + sqrt(1 - a' - s^2) epsilon + s (fresh noise), where a' is the product of alphas after
// the step and s = eta sqrt((1 - a') / (1 - a) (1 - a / a')).
LinearStep ddim_step(Prediction prediction, double alpha_cumprod, double next_alpha_cumprod, double eta,
                     bool limits) {
  const auto [fresh, epsilon] = noises(alpha_cumprod, next_alpha_cumprod, eta);
  const NoiseLevel level{std::sqrt(alpha_cumprod), std::sqrt(1 - alpha_cumprod)};
  const NoiseLevel next{std::sqrt(next_alpha_cumprod), epsilon};
  LinearStep step;
  step.sample = to_sample(prediction, level);
  if (limits) {
    // Only x_0 is limited; the predicted noise is not recomputed from it.
    step.convert = step.sample;
    step.predictor = renoised(prediction, level, {0, next.sigma});
    step.predictor.history = {next.alpha};
  } else {
    step.predictor = renoised(prediction, level, next);
  }
  if (eta > 0) step.predictor.noise = fresh;
  return step;
}

}  // namespace

std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kExactly);
  const std::vector<float>& products = schedule.alphas_cumprod;
  const bool ends_in_sample = run.ends_in_sample || config.boolean("set_alpha_to_one", true);
  const float final_product = ends_in_sample ? 1.0F : products.front();

  LinearSolver solver;
  solver.limit = read_limit(config, /*clips_by_default=*/true);
  for (const int64_t timestep : whole_timesteps(config, run.steps, schedule.size())) {
    const int64_t next = timestep - schedule.size() / run.steps;
    const float next_product = next >= 0 ? products[static_cast<size_t>(next)] : final_product;
    solver.steps.push_back(ddim_step(prediction, products[static_cast<size_t>(timestep)], next_product,
                                     run.eta, solver.limit.has_value()));
    solver.steps.back().timestep = static_cast<double>(timestep);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
