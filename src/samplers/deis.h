// The diffusion exponential integrator sampler: multistep, with polynomials of log rho, rho = sigma / alpha
// (https://arxiv.org/abs/2204.13902, section 4, "rhoAB").
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DEISMultistepScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported
// numbers of steps.
std::unique_ptr<Sampler> make_deis(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
