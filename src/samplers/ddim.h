// Denoising diffusion implicit models (https://arxiv.org/abs/2010.02502, eq. 12 and 16): deterministic with
// eta = 0, as noisy as the diffusion process with eta = 1.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DDIMScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported numbers of
// steps.
std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
