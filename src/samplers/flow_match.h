// Flow matching, x = (1 - sigma) * x_0 + sigma * noise: Euler's method on the velocity that the model
// predicts (https://arxiv.org/abs/2210.02747, https://arxiv.org/abs/2403.03206).
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

// FlowMatchEulerDiscreteScheduler. Throws Error(kInput) for unsupported options. With use_dynamic_shifting
// the shift grows with `sample_tokens`.
std::unique_ptr<Sampler> make_flow_euler(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
