// Second-order methods on the probability-flow ODE in x_0 + sigma * noise. Each step but the last evaluates
// the model twice: Heun's at both ends (https://arxiv.org/abs/2206.00364, algorithm 1), KDPM2 at the start
// and at the geometric mean of both ends, also with fresh noise (DPM-Solver-2 of
// https://arxiv.org/abs/2206.00927; https://github.com/crowsonkb/k-diffusion, sample_dpm_2 and
// sample_dpm_2_ancestral).
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Collects the evaluations of a run.
class TwoStageSteps {
 public:
  TwoStageSteps(const JsonConfig& config, const SamplerRun& run,
                std::initializer_list<Prediction> predictions)
      : prediction_(read_prediction(config, predictions)),
        schedule_(training_schedule(config, ZeroSnr::kIgnored)),
        levels_(sigma_levels(config, schedule_, run.steps)) {
    for (const double sigma : levels_.sigmas) sigmas_.push_back(static_cast<float>(sigma));
    solver_.init_noise_sigma = initial_sigma(config, *std::max_element(sigmas_.begin(), sigmas_.end()));
    sigmas_.push_back(0);
  }

  size_t size() const { return levels_.sigmas.size(); }
  double sigma(size_t index) const { return sigmas_[index]; }
  at::Tensor sigmas() const { return at::tensor(sigmas_, at::kFloat); }  // one more than there are steps
  double timestep(size_t index) const { return levels_.timesteps[index]; }
  double timestep_at(double sigma) const { return schedule_.timestep_at(static_cast<float>(sigma)); }
  void round_timesteps() {
    for (double& timestep : levels_.timesteps) timestep = std::nearbyint(timestep);
  }
  void limit(const std::optional<SampleLimit>& limit) { solver_.limit = limit; }

  // Steps from the current latents by `stride` along the slope at `sigma`.
  void begin(double timestep, double sigma, double stride) {
    LinearStep step = slope_step(prediction_, sigma, timestep);
    step.predictor.z = 1;
    step.predictor.history = {stride};
    solver_.steps.push_back(std::move(step));
  }

  // Goes back to the latents before begin(), and steps along both slopes, newest first.
  void repeat(double timestep, double sigma, std::vector<double> strides, std::optional<double> noise) {
    LinearStep step = slope_step(prediction_, sigma, timestep);
    step.corrector = Combination{.z = 1, .output = 0, .history = {}, .noise = {}};
    step.predictor = {.z = 1, .output = 0, .history = std::move(strides), .noise = noise};
    solver_.steps.push_back(std::move(step));
  }

  std::unique_ptr<Sampler> sampler(const JsonConfig& config) {
    return std::make_unique<LinearSampler>(std::move(solver_), config.where());
  }

 private:
  Prediction prediction_;
  TrainingSchedule schedule_;
  SigmaLevels levels_;
  std::vector<float> sigmas_;  // one more than there are levels
  LinearSolver solver_;
};

// Levels are computed in float32 and through logarithms, as in diffusers, because a step from a large to a
// small sigma amplifies the rounding error.
at::Tensor geometric_mean(const at::Tensor& a, const at::Tensor& b) {
  return a.log().lerp(b.log(), 0.5).exp();
}

double number_at(const at::Tensor& tensor, size_t index) {
  return tensor[static_cast<int64_t>(index)].item<double>();
}

}  // namespace

std::unique_ptr<Sampler> make_heun(const JsonConfig& config, const SamplerRun& run) {
  using enum Prediction;
  TwoStageSteps steps(config, run, {kEpsilon, kSample, kVelocity});
  steps.limit(read_clip(config, /*clips_by_default=*/false));
  for (size_t i = 0; i < steps.size(); ++i) {
    const double sigma = steps.sigma(i), next = steps.sigma(i + 1);
    steps.begin(steps.timestep(i), sigma, next - sigma);
    if (i + 1 == steps.size()) break;
    steps.repeat(steps.timestep(i + 1), next, {(next - sigma) / 2, (next - sigma) / 2}, {});
  }
  return steps.sampler(config);
}

std::unique_ptr<Sampler> make_kdpm2(const JsonConfig& config, const SamplerRun& run) {
  TwoStageSteps steps(config, run, {Prediction::kEpsilon, Prediction::kVelocity});
  if (config.boolean("use_karras_sigmas", false)) steps.round_timesteps();
  const at::Tensor sigmas = steps.sigmas();
  const at::Tensor middles = geometric_mean(sigmas, sigmas.roll(1));
  for (size_t i = 0; i < steps.size(); ++i) {
    const double sigma = steps.sigma(i), next = steps.sigma(i + 1);
    const double middle = number_at(middles, i + 1);
    steps.begin(steps.timestep(i), sigma, middle - sigma);
    if (i + 1 < steps.size()) steps.repeat(steps.timestep_at(middle), middle, {next - sigma}, {});
  }
  return steps.sampler(config);
}

std::unique_ptr<Sampler> make_kdpm2_ancestral(const JsonConfig& config, const SamplerRun& run) {
  TwoStageSteps steps(config, run, {Prediction::kEpsilon, Prediction::kVelocity});
  if (config.boolean("use_karras_sigmas", false)) steps.round_timesteps();
  const at::Tensor from = steps.sigmas().square(), to = from.roll(-1);
  const at::Tensor noises = (to * (from - to) / from).sqrt();
  const at::Tensor ends = (to - noises.square()).sqrt();
  const at::Tensor middles = geometric_mean(steps.sigmas(), ends);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double sigma = steps.sigma(i);
    const bool last = i + 1 == steps.size();
    const double middle = last ? 0 : number_at(middles, i);
    steps.begin(steps.timestep(i), sigma, middle - sigma);
    if (last) break;
    steps.repeat(steps.timestep_at(middle), middle, {number_at(ends, i) - sigma}, number_at(noises, i));
  }
  return steps.sampler(config);
}

}  // namespace tessera::samplers
