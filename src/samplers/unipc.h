// UniPC: a multistep predictor, and a corrector that needs no further model output
// (https://arxiv.org/abs/2302.04867).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// UniPCMultistepScheduler. Throws Error(kInput) for unsupported options and Error(kUsage) for unsupported
// numbers of steps.
std::unique_ptr<Sampler> make_unipc(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
