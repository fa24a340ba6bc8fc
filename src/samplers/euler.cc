// Euler's method on the probability-flow ODE in x_0 + sigma * noise, and its ancestral variant, which steps
// below the next noise level and adds fresh noise to reach it (https://arxiv.org/abs/2206.00364, algorithm 2
// without churn; https://github.com/crowsonkb/k-diffusion for the ancestral variant).
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// z' = z + (end - sigma) * (z - x_0) / sigma.
LinearStep euler_step(Prediction prediction, double sigma, double end) {
  const Conversion sample = to_sample_at(prediction, sigma);
  const double stride = (end - sigma) / sigma;
  LinearStep step;
  step.input_divisor = std::sqrt(sigma * sigma + 1);
  step.sample = sample;
  step.predictor.z = 1 + stride * (1 - sample.z);
  step.predictor.output = -stride * sample.output;
  return step;
}

// Returns the sigmas between the ends in equal steps of their logarithm, one more than there are steps.
std::vector<double> log_linear_sigmas(const TrainingSchedule& schedule, int64_t steps) {
  const at::Tensor sigmas =
      at::linspace(schedule.log_sigmas.back(), schedule.log_sigmas.front(), steps + 1, at::kFloat).exp_();
  return {sigmas.const_data_ptr<float>(), sigmas.const_data_ptr<float>() + sigmas.numel()};
}

}  // namespace

std::unique_ptr<Sampler> make_euler(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  SigmaLevels levels{.timesteps = float_timesteps(config, run.steps, schedule), .sigmas = {}};
  if (read_choice(config, "interpolation_type", "linear", {"linear", "log_linear"}) == "linear") {
    for (const double timestep : levels.timesteps) levels.sigmas.push_back(schedule.sigma_at(timestep));
  } else {
    levels.sigmas = log_linear_sigmas(schedule, run.steps);
  }
  respace(config, schedule, run.steps, levels);
  const std::vector<float> sigmas = with_final_sigma(config, levels.sigmas, schedule.sigmas.front());
  // The timestep of a continuous model is a function of sigma, which gives log_linear's last sigma a step
  // too.
  const bool continuous =
      read_choice(config, "timestep_type", "discrete", {"discrete", "continuous"}) == "continuous" &&
      prediction == Prediction::kVelocity;

  LinearSolver solver;
  solver.init_noise_sigma = initial_sigma(config, *std::max_element(sigmas.begin(), sigmas.end()));
  for (size_t i = 0; i < (continuous ? levels.sigmas : levels.timesteps).size(); ++i) {
    solver.steps.push_back(euler_step(prediction, sigmas[i], run.ends_in_sample ? 0 : sigmas[i + 1]));
    solver.steps.back().timestep = continuous ? 0.25F * std::log(sigmas[i]) : levels.timesteps[i];
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

std::unique_ptr<Sampler> make_euler_ancestral(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, {Prediction::kEpsilon, Prediction::kVelocity});
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  const std::vector<double> timesteps = float_timesteps(config, run.steps, schedule);
  std::vector<float> sigmas;
  sigmas.reserve(timesteps.size() + 1);
  for (const double timestep : timesteps) sigmas.push_back(static_cast<float>(schedule.sigma_at(timestep)));
  sigmas.push_back(0);

  LinearSolver solver;
  solver.init_noise_sigma = initial_sigma(config, *std::max_element(sigmas.begin(), sigmas.end()));
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const double from = sigmas[i];
    const double to = run.ends_in_sample ? 0 : sigmas[i + 1];
    const double noise = to * std::sqrt(from * from - to * to) / from;
    solver.steps.push_back(euler_step(prediction, from, to * to / from));
    solver.steps.back().predictor.noise = noise;
    solver.steps.back().timestep = timesteps[i];
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
