// Pseudo numerical methods (https://arxiv.org/abs/2202.09778): the step of DDIM with several model outputs
// combined, those of a linear multistep method, after a warm-up of a step done again or of three Runge-Kutta
// steps.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// PNDMScheduler. The model is evaluated once more than there are steps, with skip_prk_steps = false nine
// times more. Throws Error(kInput) for options and Error(kUsage) for steps that it cannot serve.
std::unique_ptr<Sampler> make_pndm(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
