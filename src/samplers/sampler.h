// Samplers: the solvers that turn model outputs into the next latents. Steps are elementwise, unless
// Sampler::is_elementwise() says otherwise, so a step on a slice of the latents equals the slice of the step.
// A solver's memory between steps is in `SamplerState`; the loop keeps one for each slice that it steps
// separately.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::samplers {

// The memory of a multistep solver between steps, for one slice of the latents. Starts empty.
struct SamplerState {
  std::vector<at::Tensor>
      history;                    // earlier converted model outputs, newest last; fp32, shaped like the slice
  std::vector<at::Tensor> extra;  // other tensors of a solver (UniPC: the sample before its predictor step)
};

// The schedule of one run. It is immutable after construction, hence safe to share between slices and ranks.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // The timestep at which the model is evaluated in each step (diffusers' `timesteps`); length = steps().
  const std::vector<double>& timesteps() const { return timesteps_; }
  int64_t steps() const { return static_cast<int64_t>(timesteps_.size()); }

  // Whether a step may be taken on any slice of the latents. Dynamic thresholding needs whole pictures, one
  // in each row of the first dimension.
  virtual bool is_elementwise() const { return true; }

  // The factor that scales the initial standard normal noise.
  virtual double init_noise_sigma() const { return 1.0; }

  // Returns the model's input for step `index`, given the latents `z` [any shape], fp32.
  virtual at::Tensor scale_model_input(const at::Tensor& z, int64_t index) const;

  // Whether step `index` needs fresh noise: standard normal, shaped like the whole latents, drawn by the
  // caller in the order of the steps (where diffusers draws it), then sliced like z.
  virtual bool needs_noise(int64_t /*index*/) const { return false; }

  // Returns the latents after step `index`. `model_output` and `z` have the same shape (any), fp32; if the
  // sampler uses a learned variance, `model_output` has twice the channels. `noise` is as above, undefined if
  // needs_noise(index) is false. Steps must come in order for each state. Arguments are not changed, and the
  // state shares no memory with them.
  virtual at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& z,
                          SamplerState& state, const at::Tensor& noise) const = 0;

  // Returns the sample x_0 that the model's output predicts; the arguments are those of step(). It is not
  // finite if the latents are pure noise and the model predicts the noise.
  virtual at::Tensor predicted_sample(const at::Tensor& model_output, int64_t index,
                                      const at::Tensor& z) const = 0;

 protected:
  std::vector<double> timesteps_;
};

// The parameters of a run, besides the options of the file.
struct SamplerRun {
  int64_t steps;              // num_inference_steps, >= 1; PNDM, Heun and KDPM2 evaluate the model more often
  int64_t sample_tokens = 0;  // from 0 to 1; ignored by samplers without it
  double eta = 0;             // from 0 to 1; samplers without it ignore it
  // Each step of DDIM and Euler gives the predicted sample x_0, which diffusers' schedulers return along
  // with the latents; other samplers ignore it. The two differ if the options let the last step end at some
  // noise.
  bool ends_in_sample = false;
  // Options of the sampler's class that replace the file's, by name (samplers/options.h).
  Json options = Json::object();
  // Flow matching begins with the noise levels 1, (N - 1) / N, ..., 1 / N, which many pipelines of diffusers
  // pass to their schedulers, instead of those of training; other samplers are refused.
  bool has_even_sigmas = false;
  // The exponent of flow matching's shift if it depends on the picture (use_dynamic_shifting), for models
  // with a rule of their own that replaces the file's numbers; other samplers ignore it.
  std::optional<double> mu = {};
};

// Makes the sampler that `config` (a scheduler_config.json) describes, or, if `name` is given, the sampler of
// that name with that config's schedule. With options of the run, it is equivalent to
// CLASS.from_config(config, **options) in diffusers, except that a short name keeps the options it implies.
// Names are diffusers' class names and the short names of known_samplers(), to which "-karras",
// "-exponential" or "-beta" adds the noise levels of that name if the class has them. Throws Error(kUsage)
// for an unknown name, an impossible run or an option of the run that the class lacks or refuses, and
// Error(kInput) for an unknown class in the file; errors about unknown names list the known ones. Warns about
// options of the file that no scheduler has.
std::unique_ptr<Sampler> make_sampler(const JsonConfig& config, const std::optional<std::string>& name,
                                      const SamplerRun& run);

struct SamplerName {
  std::string short_name;                    // "dpm++"
  std::string class_name;                    // "DPMSolverMultistepScheduler"
  std::vector<std::string> own_fields = {};  // fields of a request that only some samplers have
};
// The rows of sampler.cc's table. A class may have several short names, one per algorithm; the class name
// itself leaves every choice to the file and diffusers' defaults.
const std::vector<SamplerName>& known_samplers();

// Returns the class of a name that make_sampler() knows, and any other text unchanged.
std::string sampler_class(const std::string& name);

}  // namespace tessera::samplers
