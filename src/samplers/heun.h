// Second-order methods on the probability-flow ODE in x_0 + sigma * noise. Each step but the last evaluates
// the model twice: Heun's at both ends (https://arxiv.org/abs/2206.00364, algorithm 1), KDPM2 at the start
// and at the geometric mean of both ends, also with fresh noise (DPM-Solver-2 of
// https://arxiv.org/abs/2206.00927; https://github.com/crowsonkb/k-diffusion, sample_dpm_2 and
// sample_dpm_2_ancestral).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// HeunDiscreteScheduler, KDPM2DiscreteScheduler and KDPM2AncestralDiscreteScheduler. Throw Error(kInput) for
// unsupported options and Error(kUsage) for unsupported numbers of steps.
std::unique_ptr<Sampler> make_heun(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_kdpm2(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_kdpm2_ancestral(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
