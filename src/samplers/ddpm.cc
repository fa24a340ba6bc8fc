// Denoising diffusion probabilistic models: ancestral sampling with a variance that is not learned
// (https://arxiv.org/abs/2006.11239, eq. 6 and 7).
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Returns whether the fresh noise has all the variance of the process, beta, instead of that given x_0. The
// logarithm does not change it.
bool has_large_variance(const JsonConfig& config) {
  refuse_learned_variance(config);
  const std::string type = config.string("variance_type", "fixed_small", Null::kDefault);
  if (type != "fixed_small" && type != "fixed_small_log" && type != "fixed_large")
    config.fail("variance_type", "one of fixed_small, fixed_small_log, fixed_large");
  return type == "fixed_large";
}

}  // namespace

std::unique_ptr<Sampler> make_ddpm(const JsonConfig& config, const SamplerRun& run) {
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const bool large = has_large_variance(config);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kExactly);
  const std::vector<int64_t> timesteps = whole_timesteps(config, run.steps, schedule.size());

  LinearSolver solver;
  solver.limit = read_limit(config, /*clips_by_default=*/true);
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const auto product_at = [&](size_t index) -> double {
      return index < timesteps.size() ? schedule.alphas_cumprod[static_cast<size_t>(timesteps[index])] : 1;
    };
    const double product = product_at(i), next = product_at(i + 1);
    const double alpha = product / next, beta = 1 - alpha;
    LinearStep step;
    step.timestep = static_cast<double>(timesteps[i]);
    step.sample = to_sample(prediction, {std::sqrt(product), std::sqrt(1 - product)});
    step.convert = step.sample;
    step.predictor.z = std::sqrt(alpha) * (1 - next) / (1 - product);
    step.predictor.history = {std::sqrt(next) * beta / (1 - product)};
    if (timesteps[i] > 0 && !run.ends_in_sample) {
      constexpr double kLeastVariance = 1e-20;
      const double small = std::max((1 - next) / (1 - product) * beta, kLeastVariance);
      step.predictor.noise = std::sqrt(large ? beta : small);
    }
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
