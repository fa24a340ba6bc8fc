// Euler's method on the probability-flow ODE in x_0 + sigma * noise, and its ancestral variant, which steps
// below the next noise level and adds fresh noise to reach it (https://arxiv.org/abs/2206.00364, algorithm 2
// without churn; https://github.com/crowsonkb/k-diffusion for the ancestral variant).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// EulerDiscreteScheduler and EulerAncestralDiscreteScheduler. Throw Error(kInput) for unsupported options and
// Error(kUsage) for unsupported numbers of steps.
std::unique_ptr<Sampler> make_euler(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_euler_ancestral(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
