// Flow matching, x = (1 - sigma) * x_0 + sigma * noise: Euler's method on the velocity that the model
// predicts (https://arxiv.org/abs/2210.02747, https://arxiv.org/abs/2403.03206).
#include "samplers/solvers.h"

#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Returns the largest and the smallest sigma of training, [1, 1/T], in float32. A fixed shift has already
// been applied to them (and is applied again to the sigmas between them).
std::pair<float, float> training_range(double shift, int64_t train_timesteps) {
  const auto shifted = [&](float sigma) {
    return static_cast<float>(shift) * sigma / (1.0F + static_cast<float>(shift - 1) * sigma);
  };
  return {shifted(1.0F), shifted(1.0F / static_cast<float>(train_timesteps))};
}

// The shift is linear in the number of image tokens between two fixed points.
double mu_of_file(const JsonConfig& config, int64_t tokens) {
  TESSERA_CHECK(tokens > 0, "the number of image tokens is not known");
  const double base_length = static_cast<double>(config.integer("base_image_seq_len", 256));
  const double max_length = static_cast<double>(config.integer("max_image_seq_len", 4096));
  const double base_shift = config.number("base_shift", 0.5);
  const double slope = (config.number("max_shift", 1.15) - base_shift) / (max_length - base_length);
  return static_cast<double>(tokens) * slope + (base_shift - slope * base_length);
}

double dynamic_shift(const JsonConfig& config, const SamplerRun& run) {
  const double mu = run.mu ? *run.mu : mu_of_file(config, run.sample_tokens);
  const bool linear =
      read_choice(config, "time_shift_type", "exponential", {"exponential", "linear"}) == "linear";
  return linear ? mu : std::exp(mu);
}

// Returns 1, (N - 1) / N, ..., 1 / N, in float32.
std::vector<double> even_sigmas(int64_t steps) {
  std::vector<double> sigmas = linspace(1, 1 / static_cast<double>(steps), steps);
  for (double& sigma : sigmas) sigma = static_cast<float>(sigma);
  return sigmas;
}

// Returns sigmas between the ends of training.
std::vector<double> training_sigmas(double shift, int64_t train_timesteps, int64_t steps) {
  const auto [largest, smallest] = training_range(shift, train_timesteps);
  const auto scale = static_cast<double>(train_timesteps);
  std::vector<double> sigmas = linspace(largest * scale, smallest * scale, steps);
  for (double& sigma : sigmas) sigma /= scale;
  return sigmas;
}

// Shifts the levels and stretches them to the terminal one, with the roundings of diffusers' expressions in
// NumPy: a model that scales its timesteps by thousands notices the last bit.
template <typename Real>
void shift_levels(const JsonConfig& config, bool dynamic, double shift, std::vector<double>& sigmas) {
  const Real factor = static_cast<Real>(shift), less = static_cast<Real>(shift - 1),
             left = static_cast<Real>(1 - config.number("shift_terminal", 0, Null::kDefault));
  for (double& each : sigmas) {
    const auto sigma = static_cast<Real>(each);
    each = dynamic ? factor / (factor + (1 / sigma - 1)) : factor * sigma / (1 + less * sigma);
  }
  if (left == 1) return;
  const Real scale = (1 - static_cast<Real>(sigmas.back())) / left;
  for (double& each : sigmas) each = 1 - (1 - static_cast<Real>(each)) / scale;
}

std::vector<double> flow_sigmas(const JsonConfig& config, int64_t train_timesteps, const SamplerRun& run) {
  const bool dynamic = config.boolean("use_dynamic_shifting", false);
  const double fixed_shift = config.number("shift", 1, dynamic ? Null::kDefault : Null::kRefused);
  // diffusers' pipelines with a rule for mu leave the levels to a file with this option.
  const bool has_own = run.mu && config.boolean("use_flow_sigmas", false);
  const double shift = dynamic ? dynamic_shift(config, run) : fixed_shift;
  std::vector<double> sigmas;
  if (run.has_even_sigmas && !has_own) {
    sigmas = even_sigmas(run.steps);
    shift_levels<float>(config, dynamic, shift, sigmas);
  } else {
    sigmas = training_sigmas(dynamic ? 1 : fixed_shift, train_timesteps, run.steps);
    shift_levels<double>(config, dynamic, shift, sigmas);
  }
  return respaced_sigmas(config, sigmas.front(), sigmas.back(), run.steps).value_or(sigmas);
}

}  // namespace

std::unique_ptr<Sampler> make_flow_euler(const JsonConfig& config, const SamplerRun& run) {
  const int64_t train_timesteps = config.integer("num_train_timesteps", 1000);
  const bool invert = config.boolean("invert_sigmas", false);
  std::vector<float> sigmas;
  for (const double sigma : flow_sigmas(config, train_timesteps, run)) {
    sigmas.push_back(invert ? 1.0F - static_cast<float>(sigma) : static_cast<float>(sigma));
  }
  sigmas.push_back(invert ? 1.0F : 0.0F);

  LinearSolver solver;
  const bool stochastic = config.boolean("stochastic_sampling", false);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    const double sigma = sigmas[i];
    const double next = sigmas[i + 1];
    LinearStep step;
    step.timestep = sigmas[i] * static_cast<float>(train_timesteps);
    step.sample = {1, static_cast<double>(sigmas.back()) - sigma, 1};
    if (stochastic) {
      step.predictor = {.z = 1 - next, .output = -(1 - next) * sigma, .history = {}, .noise = next};
    } else {
      step.predictor = {.z = 1, .output = next - sigma, .history = {}, .noise = {}};
    }
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
