// The options and the steps of DPM-Solver and DPM-Solver++ (https://arxiv.org/abs/2206.00927,
// https://arxiv.org/abs/2211.01095), also as SDE solvers: multistep, which uses the outputs of earlier steps,
// and singlestep, which goes back to an earlier level.
#pragma once

#include <optional>
#include <vector>

#include "samplers/linear_sampler.h"

namespace tessera::samplers {

struct DpmOptions {
  bool on_samples;  // the "++": integrates x_0 instead of the noise
  bool stochastic;
  bool heun;
  int64_t order;
  bool lower_order_final;
  bool euler_at_final;
  bool zero_final_sigma;
  bool flow;
  Prediction prediction;
  std::optional<SampleLimit> limit;
};

// Throws Error(kInput) for options that no solver supports; `lower_order_final` is the default of that
// option.
DpmOptions read_dpm_options(const JsonConfig& config, bool lower_order_final);

// The order of step `index` of `steps`: it rises at the start, as outputs become known, and falls at the end.
int64_t order_of_step(const DpmOptions& options, int64_t index, int64_t steps);

// The multistep step, given the m of earlier steps. `levels` are those of steps index - 2, index - 1, index
// and index + 1, newest last; `order` determines how many of them there are.
Combination dpm_step(const DpmOptions& options, const std::vector<NoiseLevel>& levels, int64_t order);

// The step from levels.front() to levels.back(), given the m at the levels between them and at the first.
// There are two to four levels, one more than the order.
Combination singlestep_dpm_step(const DpmOptions& options, const std::vector<NoiseLevel>& levels);

}  // namespace tessera::samplers
