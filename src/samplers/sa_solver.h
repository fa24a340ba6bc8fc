// SA-Solver: a stochastic Adams method with predictor and corrector (https://arxiv.org/abs/2309.05019).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// SASolverScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported numbers
// of steps.
std::unique_ptr<Sampler> make_sa_solver(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
