// Noise schedules: compute the noise levels and timesteps of a run from the options of a
// scheduler_config.json. They use float32 and float64 where diffusers does, so that timesteps are equal and
// sigmas are equal to the bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::samplers {

// The noise schedule of training: x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) noise with a = alphas_cumprod, or,
// divided by sqrt(a_t), x_0 + sigma_t noise. T = num_train_timesteps.
struct TrainingSchedule {
  std::vector<float> alphas_cumprod;  // [T], falling
  std::vector<float> sigmas;          // [T], sqrt((1 - a) / a), rising
  std::vector<float> log_sigmas;      // [T]

  int64_t size() const { return static_cast<int64_t>(sigmas.size()); }
  double sigma_at(double timestep) const;  // linear between the timesteps, constant beyond them
  // The inverse, linear in log sigma, computed with the precision of its argument.
  double timestep_at(double sigma) const;
  float timestep_at(float sigma) const;
  // Counts the timesteps whose log(sqrt(a) / sqrt(1 - a)) is at least the option lambda_min_clipped. Throws
  // Error(kInput) if there are none.
  int64_t count_unclipped(const JsonConfig& config) const;
};

// The effect of rescale_betas_zero_snr (https://arxiv.org/abs/2305.08891, algorithm 1) on the last a: none,
// for classes that lack the option; 0; or 2^-24, so that its sigma is finite.
enum class ZeroSnr { kIgnored, kExactly, kNearly };

// Reads beta_schedule (linear, scaled_linear, squaredcos_cap_v2), beta_start, beta_end, trained_betas and
// rescale_betas_zero_snr. Throws Error(kInput).
TrainingSchedule training_schedule(const JsonConfig& config, ZeroSnr zero_snr);

// spaced_timesteps(config, "leading", ...), rounded, for solvers that look up products of alphas by timestep.
// Throws Error(kUsage) for a timestep outside the schedule.
std::vector<double> spaced_timesteps(const JsonConfig& config, const std::string& default_spacing,
                                     int64_t steps, int64_t end, bool skip_last);

// spaced_timesteps(config, "leading", ...), rounded, for solvers that look up their products of alphas.
// Throws Error(kUsage) for a timestep outside the schedule.
std::vector<int64_t> whole_timesteps(const JsonConfig& config, int64_t steps, int64_t end);

// `count` evenly spaced numbers from `first` to `last`, both included.
std::vector<double> linspace(double first, double last, int64_t count);

// Noise levels from `sigma_max` down to `sigma_min` (or the options of these names) if one of
// use_karras_sigmas (https://arxiv.org/abs/2206.00364, eq. 5), use_exponential_sigmas and use_beta_sigmas
// (https://arxiv.org/abs/2407.12173) is set, else nullopt. Throws Error(kInput) if several are set.
std::optional<std::vector<double>> respaced_sigmas(const JsonConfig& config, double sigma_max,
                                                   double sigma_min, int64_t steps);

// Returns `sigmas` in float32 with the last noise level appended: 0, or `sigma_min` if final_sigmas_type asks
// for it.
std::vector<float> with_final_sigma(const JsonConfig& config, const std::vector<double>& sigmas,
                                    double sigma_min);

// Whether two consecutive sigmas are equal.
bool repeats(const std::vector<double>& sigmas);

// Stretches flow-matching sigmas so that the last equals the option shift_terminal, if that is set.
void stretch_to_terminal(const JsonConfig& config, std::vector<double>& sigmas);

// shift * sigma / (1 + (shift - 1) * sigma): the timestep shift of flow matching
// (https://arxiv.org/abs/2403.03206).
double shifted_sigma(double shift, double sigma);

// The noise levels of solvers that keep latents x_0 + sigma * noise, which the model sees divided by
// sqrt(sigma^2 + 1).
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

// The levels of multistep solvers at the rounded timesteps of `timestep_spacing` below `end`.
SigmaLevels rounded_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                           int64_t end);

// The levels of flow matching for multistep solvers: `flow_shift` applied to equal steps, without the last
// level.
SigmaLevels flow_sigma_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps);

// The levels of multistep solvers that never reach 0, with the last one: that of timestep 0, or, for respaced
// sigmas and those of flow matching, the last step's own. Otherwise, timesteps are below `end`.
SigmaLevels levels_above_zero(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                              int64_t end, bool flow);

// The deviation of the noise that a run begins with, given its largest sigma. `leading` starts below the last
// noise level, so it needs latents of variance sigma^2 + 1.
double initial_sigma(const JsonConfig& config, double largest);

}  // namespace tessera::samplers
