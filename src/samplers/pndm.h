// Pseudo numerical methods (https://arxiv.org/abs/2202.09778): DDIM's step with a linear multistep
// combination of model outputs, after a warm-up of one repeated step or of three Runge-Kutta steps.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// PNDMScheduler. It evaluates the model once more than there are steps, or nine times more with
// skip_prk_steps = false. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported
// numbers of steps.
std::unique_ptr<Sampler> make_pndm(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
