// UniPC: a multistep predictor and a corrector that costs no further model output
// (https://arxiv.org/abs/2302.04867).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// UniPCMultistepScheduler. Throws Error(kInput) for options and Error(kUsage) for steps that it cannot serve.
std::unique_ptr<Sampler> make_unipc(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
