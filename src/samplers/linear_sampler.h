// The step that all solvers here share. Each step is a linear combination of the latents, the (converted)
// model outputs and fresh noise, with weights that depend on the schedule alone. A solver is therefore a
// table of weights, computed once per run in double precision; LinearSampler applies it in fp32.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "samplers/options.h"
#include "samplers/sampler.h"

namespace tessera::samplers {

// A noise level in the form x = alpha * x_0 + sigma * noise.
struct NoiseLevel {
  double alpha;
  double sigma;
  double lambda() const;  // log(alpha / sigma), half the logarithm of the signal-to-noise ratio
};

// Converts a solver's sigma: that of x_0 + sigma * noise, scaled to unit variance, or with `flow` that of (1
// - sigma) * x_0 + sigma * noise.
NoiseLevel noise_level(double sigma, bool flow);
std::vector<NoiseLevel> noise_levels(const std::vector<float>& sigmas, bool flow);

// m = (z * (latents) + output * (model output)) / divisor.
struct Conversion {
  double z;
  double output;
  double divisor;
};
Conversion to_sample(Prediction prediction, const NoiseLevel& level);  // m = x_0
Conversion to_epsilon(Prediction prediction,
                      const NoiseLevel& level);  // m = noise; not for Prediction::kFlow
// for a corrector: that of the previous step
Conversion to_sample_at(Prediction prediction, double sigma);

// z * (latents) + output * (model output) + sum_k history[k] * m[k] + noise * (fresh noise). Noise is drawn
// if it has a weight, even 0.
struct Combination {
  double z = 0;
  double output = 0;
  std::vector<double> history;       // newest m first
  std::optional<double> noise = {};  // of a corrector: that of the step before
};

// next.alpha * x_0 + next.sigma * epsilon, both estimated from the model's output at `level`: the step of
// DDIM.
Combination renoised(Prediction prediction, const NoiseLevel& level, const NoiseLevel& next);

struct LinearStep {
  double timestep = 0;
  double input_divisor = 1;              // of the model's input
  Conversion sample{0, 1, 1};            // yields x_0, for observers
  Conversion convert{0, 1, 1};           // yields the m of this step
  std::optional<NoiseLevel> to_noise;    // if set, m, which is x_0, then becomes the noise (z - alpha * m) /
                                         // sigma
  std::optional<Combination> corrector;  // replaces the latents, given those that entered the previous step
  Combination predictor;                 // yields the latents that leave the step
};

// An evaluation whose m is the slope dz / dsigma = (z - x_0) / sigma of latents z = x_0 + sigma * noise. The
// predictor is left to the caller.
LinearStep slope_step(Prediction prediction, double sigma, double timestep);

// Limits x_0: m is clamped to [-s, s], where s is `most`, or, if `quantile` is set, that quantile of the
// magnitudes in each picture, limited to the range from 1 to `most` (dynamic thresholding, arXiv:2205.11487).
// If `divides`, m is then divided by s.
struct SampleLimit {
  double most;
  bool divides = false;
  std::optional<double> quantile = {};
};
// Reads `clip_sample` and `clip_sample_range`.
std::optional<SampleLimit> read_clip(const JsonConfig& config, bool clips_by_default);
// Reads `thresholding`, `dynamic_thresholding_ratio` and `sample_max_value`. Throws Error(kInput) for numbers
// out of range.
std::optional<SampleLimit> read_thresholding(const JsonConfig& config);
// Reads the latter, or, if it is off, the former.
std::optional<SampleLimit> read_limit(const JsonConfig& config, bool clips_by_default);

// Sets the conversion of a step of a solver that integrates x_0, or the noise, from the model's outputs. The
// noise for a limited x_0 is computed from it.
void set_conversion(LinearStep& step, bool on_samples, Prediction prediction, const NoiseLevel& level,
                    const std::optional<SampleLimit>& limit);

struct LinearSolver {
  std::vector<LinearStep> steps;
  double init_noise_sigma = 1;
  std::optional<SampleLimit> limit;  // of m, before it becomes noise
  // Whether two steps begin at the same noise level, because there are more steps than levels. Weights that
  // are divided by the distance of the two are then not finite.
  bool has_too_many_steps = false;
};

// In its state, `history` holds the m of earlier steps that later ones need; `extra` holds the latents that
// entered the previous step if the next one has a corrector, followed by their noise if it has a weight in
// the corrector. The state shares no memory with the caller's tensors.
class LinearSampler final : public Sampler {
 public:
  // If a weight is not finite, throws Error(kUsage) if there are too many steps, else Error(kInput) with
  // `where`, because the options require an impossible step.
  LinearSampler(LinearSolver solver, const std::string& where);

  double init_noise_sigma() const override { return solver_.init_noise_sigma; }
  bool is_elementwise() const override { return !solver_.limit || !solver_.limit->quantile; }
  bool needs_noise(int64_t index) const override;
  at::Tensor scale_model_input(const at::Tensor& z, int64_t index) const override;
  at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& z, SamplerState& state,
                  const at::Tensor& noise) const override;
  at::Tensor predicted_sample(const at::Tensor& model_output, int64_t index,
                              const at::Tensor& z) const override;

 private:
  LinearSolver solver_;
  size_t max_history_ = 0;  // over all steps
};

// Polynomials through the outputs of earlier steps, for multistep methods that integrate them exactly: for
// each node the polynomial that is 1 there and 0 at the other nodes, as coefficients of the powers of (x -
// nodes[0]), from 0 up. They are infinite or NaN if two nodes are equal.
std::vector<std::vector<double>> lagrange_polynomials(const std::vector<double>& nodes);

}  // namespace tessera::samplers
