// Samplers of distilled models that reach x_0 from any noise level in one step, and add fresh noise to go on:
// latent consistency models (https://arxiv.org/abs/2310.04378, algorithm 1) and trajectory consistency
// distillation (https://arxiv.org/abs/2402.19159, strategic stochastic sampling).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// LCMScheduler and TCDScheduler. TCD's gamma is the run's eta: with 0 no noise is added, with 1 each step is
// one of LCM. Throw Error(kInput) for unsupported options and Error(kUsage) for more steps than
// original_inference_steps.
std::unique_ptr<Sampler> make_lcm(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_tcd(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
