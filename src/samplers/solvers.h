// The solvers that run on the noise schedule of a scheduler_config.json. Each method has one source, which
// begins with the papers that it follows. Their names are those of diffusers' classes without "Scheduler".
// All throw Error(kInput) for unsupported options and Error(kUsage) for unsupported numbers of steps.
#pragma once

#include <memory>

#include "samplers/sampler.h"

namespace tessera::samplers {

std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_ddpm(const JsonConfig& config, const SamplerRun& run);

// Evaluates the model once more than there are steps, or nine times more with skip_prk_steps = false.
std::unique_ptr<Sampler> make_pndm(const JsonConfig& config, const SamplerRun& run);

std::unique_ptr<Sampler> make_euler(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_euler_ancestral(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_lms(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_heun(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_kdpm2(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_kdpm2_ancestral(const JsonConfig& config, const SamplerRun& run);

// TCD's gamma is the run's eta: with 0, no noise is added; with 1, each step is a step of LCM. Both allow at
// most original_inference_steps.
std::unique_ptr<Sampler> make_lcm(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_tcd(const JsonConfig& config, const SamplerRun& run);

// Multistep and singlestep.
std::unique_ptr<Sampler> make_dpm_solver(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_dpm_singlestep(const JsonConfig& config, const SamplerRun& run);

std::unique_ptr<Sampler> make_edm_euler(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_edm_dpm_solver(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_deis(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_sa_solver(const JsonConfig& config, const SamplerRun& run);
std::unique_ptr<Sampler> make_unipc(const JsonConfig& config, const SamplerRun& run);

// With use_dynamic_shifting the shift grows with the run's `sample_tokens`.
std::unique_ptr<Sampler> make_flow_euler(const JsonConfig& config, const SamplerRun& run);

}  // namespace tessera::samplers
