// Samplers: the solvers that turn model outputs into the next latents. Every step is elementwise, so a step
// on a slice of the latents equals the slice of the step; what a solver remembers between steps is in
// `SamplerState`, of which the loop keeps one for each slice that it steps on its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::samplers {

// What a multistep solver keeps between steps, for one slice of the latents. Starts empty.
struct SamplerState {
  std::vector<at::Tensor>
      history;                    // earlier converted model outputs, newest last; fp32, shaped like the slice
  std::vector<at::Tensor> extra;  // what else a solver keeps (UniPC: the sample before its predictor step)
};

// The schedule of one run. Immutable after construction, hence safe to share between slices and ranks.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // What the model is asked at each step (diffusers' `timesteps`), in the order of the steps; length =
  // steps().
  const std::vector<double>& timesteps() const { return timesteps_; }
  int64_t steps() const { return static_cast<int64_t>(timesteps_.size()); }

  // Standard deviation that the initial noise is multiplied by.
  virtual double init_noise_sigma() const { return 1.0; }

  // The model's input for step `index`, from the latents `z` [any shape], fp32.
  virtual at::Tensor scale_model_input(const at::Tensor& z, int64_t index) const;

  // True when step() wants fresh noise: standard normal, shaped like the whole latents and drawn by the
  // caller once per step, in the order of the steps (diffusers draws it at the same place), then sliced like
  // z.
  virtual bool needs_noise() const { return false; }

  // The latents after step `index`. `model_output` and `z` have one shape (any), fp32; `noise` is as above,
  // undefined when needs_noise() is false. Steps must come in order for each state.
  // No argument is changed, and the state shares no memory with them.
  virtual at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& z,
                          SamplerState& state, const at::Tensor& noise) const = 0;

 protected:
  std::vector<double> timesteps_;
};

// What a run asks of its sampler, beside the options of the file.
struct SamplerRun {
  int64_t steps;              // num_inference_steps, >= 1; PNDM evaluates the model more often
  int64_t sample_tokens = 0;  // image tokens, for resolution-dependent shifts of flow matching
  double eta = 0;             // of DDIM, from 0 to 1; other samplers take no notice
};

// The sampler that `config` (a scheduler_config.json) describes, or the class `name` with that config's
// schedule when `name` is given: diffusers' class names and the short names of
// known_samplers(). Throws Error(kUsage) for an unknown name or a run that cannot be, Error(kInput) for an
// unknown class or option in the file; both list the known ones.
std::unique_ptr<Sampler> make_sampler(const JsonConfig& config, const std::optional<std::string>& name,
                                      const SamplerRun& run);

struct SamplerName {
  std::string short_name;  // "dpm++"
  std::string class_name;  // "DPMSolverMultistepScheduler"
};
// The rows of sampler.cc's table. A class may have several short names, each for one of its algorithms; the
// class name itself leaves every choice to the file and diffusers' defaults.
const std::vector<SamplerName>& known_samplers();

}  // namespace tessera::samplers
