// Samplers of models with the preconditioning of EDM, which works on latents x_0 + sigma * noise
// (https://arxiv.org/abs/2206.00364, section 5 and table 1).
#include "samplers/solvers.h"

#include <cmath>

#include "samplers/dpm_solver.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// What both solvers share: the noise levels, and a step without its predictor.
struct Preconditioning {
  double sigma_min, sigma_max, sigma_data;
  Prediction prediction;

  explicit Preconditioning(const JsonConfig& config)
      : sigma_min(config.number("sigma_min", 0.002, Null::kDefault)),
        sigma_max(config.number("sigma_max", 80, Null::kDefault)),
        sigma_data(config.number("sigma_data", 0.5)),
        prediction(read_prediction(config, {Prediction::kEpsilon, Prediction::kVelocity})) {}

  double init_noise_sigma() const { return std::sqrt(sigma_max * sigma_max + 1); }

  // The levels go from sigma_max to sigma_min; `type` is the dtype of the computation, to reproduce
  // diffusers' rounding.
  std::vector<double> sigmas(const JsonConfig& config, int64_t steps, at::ScalarType type) const {
    const double rho = config.number("rho", 7);
    at::Tensor levels;
    if (read_choice(config, "sigma_schedule", "karras", {"karras", "exponential"}) == "karras") {
      const double first = std::pow(sigma_max, 1 / rho), last = std::pow(sigma_min, 1 / rho);
      levels = (at::linspace(0, 1, steps, type) * (last - first) + first).pow(rho);
    } else {
      levels = at::linspace(std::log(sigma_min), std::log(sigma_max), steps, at::kFloat).exp().flip(0);
    }
    levels = levels.to(at::kFloat).to(at::kDouble).contiguous();
    return {levels.const_data_ptr<double>(), levels.const_data_ptr<double>() + levels.numel()};
  }

  // The model's timestep is 0.25 log sigma, and its input has unit variance.
  LinearStep step(double sigma) const {
    const double variance = sigma * sigma + sigma_data * sigma_data;
    const double output = sigma * sigma_data / std::sqrt(variance);
    LinearStep result;
    result.timestep = 0.25F * std::log(static_cast<float>(sigma));
    result.input_divisor = std::sqrt(variance);
    result.sample = {sigma_data * sigma_data / variance,
                     prediction == Prediction::kEpsilon ? output : -output, 1};
    result.convert = result.sample;
    return result;
  }
};

}  // namespace

std::unique_ptr<Sampler> make_edm_euler(const JsonConfig& config, const SamplerRun& run) {
  const Preconditioning edm(config);
  const std::vector<double> levels = edm.sigmas(config, run.steps, at::kDouble);
  const std::vector<float> sigmas = with_final_sigma(config, levels, levels.back());
  LinearSolver solver;
  solver.init_noise_sigma = edm.init_noise_sigma();
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    LinearStep step = edm.step(sigmas[i]);
    step.to_noise = {1, sigmas[i]};
    step.predictor.z = 1;
    step.predictor.history = {static_cast<double>(sigmas[i + 1]) - sigmas[i]};
    solver.steps.push_back(std::move(step));
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

std::unique_ptr<Sampler> make_edm_dpm_solver(const JsonConfig& config, const SamplerRun& run) {
  DpmOptions options = read_dpm_options(config, /*lower_order_final=*/true);
  if (!options.on_samples) config.fail("algorithm_type", "dpmsolver++ or sde-dpmsolver++");
  if (options.stochastic && options.order == 3) config.fail("solver_order", "1 or 2 with sde-dpmsolver++");
  const Preconditioning edm(config);
  const std::vector<double> raw = edm.sigmas(config, run.steps, at::kFloat);
  std::vector<NoiseLevel> levels;
  for (const float sigma : with_final_sigma(config, raw, edm.sigma_min)) levels.push_back({1, sigma});
  LinearSolver solver;
  solver.init_noise_sigma = edm.init_noise_sigma();
  solver.limit = options.limit;
  for (int64_t i = 0; i < run.steps; ++i) {
    const int64_t order = order_of_step(options, i, run.steps);
    LinearStep step = edm.step(levels[static_cast<size_t>(i)].sigma);
    step.predictor = dpm_step(options, {levels.begin() + (i + 1 - order), levels.begin() + (i + 2)}, order);
    solver.steps.push_back(std::move(step));
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
