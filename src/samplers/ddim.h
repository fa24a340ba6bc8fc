// Denoising diffusion implicit models, deterministic (https://arxiv.org/abs/2010.02502, eq. 12 with sigma_t =
// 0).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// DDIMScheduler. Throws Error(kInput) for options and Error(kUsage) for steps that it cannot serve.
std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, int64_t steps, int64_t sample_tokens);

}  // namespace tessera::samplers
