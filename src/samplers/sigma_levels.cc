#include "samplers/sigma_levels.h"

#include <cmath>

namespace tessera::samplers {

std::vector<double> float_timesteps(const JsonConfig& config, int64_t steps,
                                    const TrainingSchedule& schedule) {
  std::vector<double> timesteps =
      spaced_timesteps(config, "linspace", steps, schedule.size(), /*skip_last=*/false);
  for (double& timestep : timesteps) timestep = static_cast<float>(timestep);
  return timesteps;
}

void respace(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps, SigmaLevels& levels) {
  double last = levels.sigmas.back();
  // Where a rounding error gives diffusers the timestep -1 (schedule.h), the sigmas end at the lowest level.
  const auto size = static_cast<double>(schedule.size());
  const bool trailing = config.string("timestep_spacing", "linspace") == "trailing";
  if (trailing && std::ceil(size / (size / static_cast<double>(steps))) > static_cast<double>(steps))
    last = schedule.sigmas.front();
  const auto respaced = respaced_sigmas(config, levels.sigmas.front(), last, steps);
  if (!respaced) return;
  levels.sigmas = *respaced;
  levels.timesteps.clear();
  for (const double sigma : levels.sigmas)
    levels.timesteps.push_back(static_cast<float>(schedule.timestep_at(sigma)));
}

SigmaLevels sigma_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps) {
  SigmaLevels levels{.timesteps = float_timesteps(config, steps, schedule), .sigmas = {}};
  for (const double timestep : levels.timesteps) levels.sigmas.push_back(schedule.sigma_at(timestep));
  respace(config, schedule, steps, levels);
  return levels;
}

SigmaLevels flow_sigma_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps) {
  const auto count = static_cast<double>(train_timesteps);
  const double shift = config.number("flow_shift", 1);
  std::vector<double> alphas = linspace(1, 1 / count, steps + 1);
  SigmaLevels levels;
  for (size_t i = alphas.size() - 1; i > 0; --i) {
    levels.sigmas.push_back(shifted_sigma(shift, 1 - alphas[i]));
    levels.timesteps.push_back(levels.sigmas.back() * count);
  }
  return levels;
}

SigmaLevels levels_above_zero(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                              int64_t end, bool flow) {
  SigmaLevels levels;
  if (auto respaced = respaced_sigmas(config, schedule.sigmas.back(), schedule.sigmas.front(), steps)) {
    levels.sigmas = std::move(*respaced);
    const bool round = config.boolean("use_karras_sigmas", false);
    for (const double sigma : levels.sigmas) {
      const double timestep = schedule.timestep_at(sigma);
      levels.timesteps.push_back(round ? std::nearbyint(timestep) : timestep);
    }
  } else if (flow) {
    levels = flow_sigma_levels(config, schedule.size(), steps);
  } else {
    for (const double timestep : spaced_timesteps(config, "linspace", steps, end, /*skip_last=*/true)) {
      levels.timesteps.push_back(std::nearbyint(timestep));
      levels.sigmas.push_back(schedule.sigma_at(levels.timesteps.back()));
    }
    levels.sigmas.push_back(schedule.sigmas.front());
    return levels;
  }
  levels.sigmas.push_back(levels.sigmas.back());
  return levels;
}

double initial_sigma(const JsonConfig& config, double largest) {
  const bool leading = config.string("timestep_spacing", "linspace") == "leading";
  return leading ? std::sqrt(largest * largest + 1) : largest;
}

// The model works on latents of unit variance, which are alpha times those here.
Conversion to_sample_at(Prediction prediction, double sigma) {
  const NoiseLevel level = noise_level(sigma, /*flow=*/false);
  const Conversion sample = to_sample(prediction, level);
  return {sample.z / sample.divisor * level.alpha, sample.output / sample.divisor, 1};
}

LinearStep slope_step(Prediction prediction, double sigma, double timestep) {
  LinearStep step;
  step.timestep = timestep;
  step.input_divisor = std::sqrt(sigma * sigma + 1);
  step.convert = to_sample_at(prediction, sigma);
  step.to_noise = {1, sigma};
  return step;
}

}  // namespace tessera::samplers
