// The linear multistep method of order 4 on the probability-flow ODE in x_0 + sigma * noise
// (https://arxiv.org/abs/2206.00364, eq. 3; https://github.com/crowsonkb/k-diffusion, sample_lms).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// LMSDiscreteScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported
// numbers of steps.
std::unique_ptr<Sampler> make_lms(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
