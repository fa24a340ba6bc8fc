// The noise levels of solvers that keep latents x_0 + sigma * noise, which the model sees divided by
// sqrt(sigma^2 + 1): Euler, LMS, Heun and KDPM2.
#pragma once

#include <vector>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {

struct SigmaLevels {
  std::vector<double> timesteps;
  std::vector<double> sigmas;  // without the last level, except in levels_above_zero()
};

// The timesteps of `timestep_spacing`, linspace by default, in float32.
std::vector<double> float_timesteps(const JsonConfig& config, int64_t steps,
                                    const TrainingSchedule& schedule);

// Replaces both by respaced_sigmas() between their ends, if one of its options is set.
void respace(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps, SigmaLevels& levels);

// The levels at float_timesteps(), respaced.
SigmaLevels sigma_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps);

// The levels of flow matching for multistep solvers: `flow_shift` applied to equal steps, without the last
// level.
SigmaLevels flow_sigma_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps);

// The levels of multistep solvers that never reach 0, with the last one: that of timestep 0, or, for respaced
// sigmas and those of flow matching, the last step's own. Without these, timesteps lie below `end`.
SigmaLevels levels_above_zero(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                              int64_t end, bool flow);

// The deviation of the noise that a run begins with, given its largest sigma. `leading` starts below the last
// noise level, so it needs latents of variance sigma^2 + 1.
double initial_sigma(const JsonConfig& config, double largest);

// x_0 = z * (latents) + output * (model output).
Conversion to_sample_at(Prediction prediction, double sigma);

// An evaluation whose m is the slope dz / dsigma = (z - x_0) / sigma at this sigma. The predictor is left to
// the caller.
LinearStep slope_step(Prediction prediction, double sigma, double timestep);

}  // namespace tessera::samplers
