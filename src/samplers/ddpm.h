// Denoising diffusion probabilistic models: ancestral sampling with a variance that is not learned
// (https://arxiv.org/abs/2006.11239, eq. 6 and 7).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DDPMScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported numbers of
// steps.
std::unique_ptr<Sampler> make_ddpm(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
