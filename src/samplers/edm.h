// Samplers of models with the preconditioning of EDM, which works on latents x_0 + sigma * noise
// (https://arxiv.org/abs/2206.00364, section 5 and table 1).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// EDMEulerScheduler and EDMDPMSolverMultistepScheduler. Throw Error(kInput) for unsupported options and
// Error(kUsage) for unsupported numbers of steps.
std::unique_ptr<Sampler> make_edm_euler(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_edm_dpm_solver(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
