// Samplers of distilled models that reach x_0 from any noise level in one step, and add fresh noise to
// continue: latent consistency models (https://arxiv.org/abs/2310.04378, algorithm 1) and trajectory
// consistency distillation (https://arxiv.org/abs/2402.19159, strategic stochastic sampling).
#include "samplers/solvers.h"

#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Takes timesteps of the distillation at equal distances, going down from the last one.
std::vector<int64_t> distilled_timesteps(const JsonConfig& config, int64_t train_timesteps, int64_t steps) {
  const int64_t original = config.integer("original_inference_steps", 50);
  if (original < 1 || original > train_timesteps)
    config.fail("original_inference_steps",
                fmt::format("from 1 to num_train_timesteps = {}", train_timesteps));
  if (steps > original)
    usage_error(field("num_inference_steps"), "must be at most original_inference_steps = {} of {}, got {}",
                original, config.where(), steps);
  const double stride = static_cast<double>(original) / static_cast<double>(steps);
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < steps; ++i) {
    const auto skipped = static_cast<int64_t>(static_cast<double>(i) * stride);
    timesteps.push_back((original - skipped) * (train_timesteps / original) - 1);
  }
  return timesteps;
}

NoiseLevel level_at(const TrainingSchedule& schedule, int64_t timestep) {
  const double product = schedule.alphas_cumprod[static_cast<size_t>(timestep)];
  return {std::sqrt(product), std::sqrt(1 - product)};
}

}  // namespace

std::unique_ptr<Sampler> make_lcm(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kExactly);
  const std::vector<int64_t> timesteps = distilled_timesteps(config, schedule.size(), run.steps);
  const double scaling = config.number("timestep_scaling", 10);

  LinearSolver solver;
  solver.limit = read_limit(config, /*clips_by_default=*/false);
  for (size_t i = 0; i < timesteps.size(); ++i) {
    // The consistency function is c_skip z + c_out x_0, which is z at timestep 0.
    constexpr double kSigmaData = 0.5;
    const double time = static_cast<double>(timesteps[i]) * scaling;
    const double square = time * time + kSigmaData * kSigmaData;
    const bool last = i + 1 == timesteps.size();
    const NoiseLevel next = last ? NoiseLevel{1, 0} : level_at(schedule, timesteps[i + 1]);
    LinearStep step;
    step.timestep = static_cast<double>(timesteps[i]);
    step.sample = to_sample(prediction, level_at(schedule, timesteps[i]));
    step.convert = step.sample;
    step.predictor.z = next.alpha * kSigmaData * kSigmaData / square;
    step.predictor.history = {next.alpha * time / std::sqrt(square)};
    if (!last) step.predictor.noise = next.sigma;
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

std::unique_ptr<Sampler> make_tcd(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kExactly);
  const std::vector<int64_t> timesteps = distilled_timesteps(config, schedule.size(), run.steps);

  LinearSolver solver;
  for (size_t i = 0; i < timesteps.size(); ++i) {
    // A step goes below the next timestep without noise, in float32 as in diffusers, then back up to it with
    // fresh noise. The last one ends at timestep 0, which holds a little noise.
    const bool last = i + 1 == timesteps.size();
    const int64_t next = last ? 0 : timesteps[i + 1];
    const float below = static_cast<float>(1 - run.eta) * static_cast<float>(next);
    const NoiseLevel target = level_at(schedule, static_cast<int64_t>(below));
    LinearStep step;
    step.sample = to_sample(prediction, level_at(schedule, timesteps[i]));
    step.predictor = renoised(prediction, level_at(schedule, timesteps[i]), target);
    step.timestep = static_cast<double>(timesteps[i]);
    if (run.eta > 0 && !last) {
      const double ratio = level_at(schedule, next).alpha / target.alpha;
      step.predictor.z *= ratio;
      step.predictor.output *= ratio;
      step.predictor.noise = std::sqrt(1 - ratio * ratio);
    }
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
