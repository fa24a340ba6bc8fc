// DPM-Solver (https://arxiv.org/abs/2206.00927) and DPM-Solver++ (https://arxiv.org/abs/2211.01095):
// multistep and singlestep, orders 1 to 3, as ODE or SDE solver, on diffusion or flow-matching schedules.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DPMSolverMultistepScheduler and DPMSolverSinglestepScheduler. Throw Error(kInput) for unsupported options
// and Error(kUsage) for unsupported numbers of steps.
std::unique_ptr<Sampler> make_dpm_solver(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_dpm_singlestep(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
