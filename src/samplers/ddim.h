// Denoising diffusion implicit models (https://arxiv.org/abs/2010.02502, eq. 12 and 16): with eta = 0
// deterministic, with eta = 1 as noisy as the diffusion process.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DDIMScheduler. Throws Error(kInput) for options and Error(kUsage) for steps that it cannot serve.
std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
