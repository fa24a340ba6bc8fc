// Pseudo numerical methods (https://arxiv.org/abs/2202.09778): DDIM's step with a linear multistep
// combination of model outputs, after a warm-up of one repeated step or of three Runge-Kutta steps.
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Returns the Adams-Bashforth weights of the latest outputs, newest first: as many as are known, at most
// four.
std::vector<double> multistep_weights(size_t known) {
  switch (known) {
    case 1:
      return {1};
    case 2:
      return {3.0 / 2, -1.0 / 2};
    case 3:
      return {23.0 / 12, -16.0 / 12, 5.0 / 12};
    default:
      return {55.0 / 24, -59.0 / 24, 37.0 / 24, -9.0 / 24};
  }
}

// Collects the evaluations of a run. The history of each step holds raw outputs: even with v_prediction,
// outputs are combined first and then converted at the noise level of the step that uses them.
class Evaluations {
 public:
  Evaluations(const JsonConfig& config, const SamplerRun& run)
      : where_(config.where()),
        steps_(run.steps),
        prediction_(read_prediction(config, {Prediction::kEpsilon, Prediction::kVelocity})),
        schedule_(training_schedule(config, ZeroSnr::kIgnored)),
        final_product_(config.boolean("set_alpha_to_one", false) ? 1.0F : schedule_.alphas_cumprod.front()),
        timesteps_(whole_timesteps(config, run.steps, schedule_.size())) {}

  // Repeats the first step with the mean of both outputs, then uses the multistep method.
  LinearSolver without_runge_kutta() {
    for (size_t i = 0; i < timesteps_.size(); ++i) {
      const int64_t timestep = timesteps_[i];
      if (i == 1) add(timestep, timestep + stride(), timestep, {0.5, 0.5}, /*again=*/true);
      add_multistep(timestep);
    }
    return std::move(solver_);
  }

  // Starts with three steps of four evaluations each.
  LinearSolver with_runge_kutta() {
    constexpr size_t kRungeKuttaSteps = 3;
    if (timesteps_.size() <= kRungeKuttaSteps) {
      usage_error(field("num_inference_steps"),
                  "must be at least {} for PNDM with skip_prk_steps = false, got {}", kRungeKuttaSteps + 1,
                  steps_);
    }
    const int64_t half = stride() / 2;
    for (size_t i = 0; i < kRungeKuttaSteps; ++i) {
      const int64_t from = timesteps_[i], to = timesteps_[i + 1];
      outputs_.push_back(index());
      add(from, from, from - half, {1}, /*again=*/false);
      add(to + half, from, to + half, {1}, /*again=*/true);
      add(to + half, from, to, {1}, /*again=*/true);
      add(to, from, to, {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6}, /*again=*/true);
    }
    for (size_t i = kRungeKuttaSteps; i < timesteps_.size(); ++i) add_multistep(timesteps_[i]);
    return std::move(solver_);
  }

 private:
  int64_t stride() const { return schedule_.size() / steps_; }
  int64_t index() const { return static_cast<int64_t>(solver_.steps.size()); }

  NoiseLevel level(int64_t timestep) const {
    if (timestep >= schedule_.size()) {
      usage_error(where_, "{} steps of PNDM reach timestep {}; the model knows 0 to {}", steps_, timestep,
                  schedule_.size() - 1);
    }
    const double product =
        timestep < 0 ? final_product_ : schedule_.alphas_cumprod[static_cast<size_t>(timestep)];
    return {std::sqrt(product), std::sqrt(1 - product)};
  }

  // Adds an evaluation of the model at `timestep`, with a step from `from` to `to` that combines the latest
  // outputs by the weights `outputs`, newest first. If `again`, it starts from the same latents as the
  // previous one.
  void add(int64_t timestep, int64_t from, int64_t to, std::vector<double> outputs, bool again) {
    LinearStep step;
    step.timestep = static_cast<double>(timestep);
    step.sample = to_sample(prediction_, level(timestep));
    const Combination weights = renoised(prediction_, level(from), level(to));
    step.predictor.z = weights.z;
    for (double& output : outputs) output *= weights.output;
    step.predictor.history = std::move(outputs);
    if (again) step.corrector = Combination{.z = 1, .output = 0, .history = {}, .noise = {}};
    solver_.steps.push_back(std::move(step));
  }

  void add_multistep(int64_t timestep) {
    outputs_.push_back(index());
    const std::vector<double> weights = multistep_weights(outputs_.size());
    std::vector<double> outputs;
    for (size_t k = 0; k < weights.size(); ++k) {
      // These evaluations, which the method does not use, lie between those that it does.
      outputs.resize(static_cast<size_t>(index() - outputs_[outputs_.size() - 1 - k]) + 1, 0);
      outputs.back() = weights[k];
    }
    add(timestep, timestep, timestep - stride(), std::move(outputs), /*again=*/false);
  }

  std::string where_;
  int64_t steps_;
  Prediction prediction_;
  TrainingSchedule schedule_;
  float final_product_;
  std::vector<int64_t> timesteps_;  // without repetitions
  std::vector<int64_t> outputs_;    // the evaluations that the multistep method uses, oldest first
  LinearSolver solver_;
};

}  // namespace

std::unique_ptr<Sampler> make_pndm(const JsonConfig& config, const SamplerRun& run) {
  Evaluations evaluations(config, run);
  const bool plain = config.boolean("skip_prk_steps", false);
  return std::make_unique<LinearSampler>(
      plain ? evaluations.without_runge_kutta() : evaluations.with_runge_kutta(), config.where());
}

}  // namespace tessera::samplers
