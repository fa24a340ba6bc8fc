#include "pipelines/denoise.h"

#include <chrono>

#include "core/error.h"

namespace tessera::pipelines {

Branches make_branches(int64_t prompts, int64_t pictures_per_prompt, bool guided, double guidance) {
  Branches branches{{}, guided, guidance};
  const int64_t pictures = prompts * pictures_per_prompt;
  if (guided) branches.prompt_of.assign(static_cast<size_t>(pictures), 0);
  for (int64_t i = 0; i < pictures; ++i)
    branches.prompt_of.push_back(i / pictures_per_prompt + (guided ? 1 : 0));
  return branches;
}

at::Tensor guide(const at::Tensor& branches, double guidance) {
  const std::vector<at::Tensor> parts = branches.chunk(2);
  // In the order of diffusers, so that not even the rounding differs.
  return parts[0] + guidance * (parts[1] - parts[0]);
}

at::Tensor denoise(const models::Denoiser& denoiser, const models::Denoiser::Context& context,
                   const samplers::Sampler& sampler, const Branches& branches, at::Tensor z, Noise& noise,
                   const Observer& observer, std::vector<double>& step_seconds) {
  TESSERA_CHECK(static_cast<int64_t>(branches.prompt_of.size()) == z.size(0) * (branches.guided ? 2 : 1),
                "{} conditionings for {} pictures", branches.prompt_of.size(), z.size(0));
  samplers::SamplerState state;
  for (int64_t i = 0; i < sampler.steps(); ++i) {
    check_cancelled(observer);
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor scaled = sampler.scale_model_input(z, i);
    const at::Tensor input = branches.guided ? at::cat({scaled, scaled}) : scaled;  // [B, C, h, w]
    at::Tensor output =
        denoiser.predict(input, sampler.timesteps()[static_cast<size_t>(i)], branches.prompt_of, context);
    if (branches.guided) output = guide(output, branches.guidance);
    at::Tensor fresh;
    if (sampler.needs_noise()) fresh = noise.draw(z.sizes()).to(z.device());
    z = sampler.step(output, i, z, state, fresh);
    step_seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (observer.progressed) observer.progressed(Stage::kDenoise, i + 1, sampler.steps());
  }
  return z;
}

}  // namespace tessera::pipelines
