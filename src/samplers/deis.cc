// The diffusion exponential integrator sampler: multistep, with polynomials of log rho, rho = sigma / alpha
// (https://arxiv.org/abs/2204.13902, section 4, "rhoAB").
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// m = noise = (z - alpha x_0) / sigma, even if alpha^2 + sigma^2 is not 1.
Conversion to_noise(Prediction prediction, const NoiseLevel& level) {
  const Conversion sample = to_sample(prediction, level);
  return {(1 - level.alpha * sample.z / sample.divisor) / level.sigma,
          -level.alpha * sample.output / sample.divisor / level.sigma, 1};
}

// Returns the integrals over rho, from that of `levels.front()` to that of `target`, of the polynomials of
// log rho through `levels`, newest first.
std::vector<double> log_rho_integrals(const std::vector<NoiseLevel>& levels, const NoiseLevel& target) {
  std::vector<double> nodes;
  std::transform(levels.begin(), levels.end(), std::back_inserter(nodes),
                 [](const NoiseLevel& level) { return -level.lambda(); });
  const double end = -target.lambda() - nodes.front();
  std::vector<double> powers = {std::expm1(end)};  // integrals of v^k e^v from 0 to `end`
  for (size_t k = 1; k < nodes.size(); ++k)
    powers.push_back(std::pow(end, static_cast<double>(k)) * std::exp(end) -
                     static_cast<double>(k) * powers.back());
  std::vector<double> integrals;
  for (const std::vector<double>& polynomial : lagrange_polynomials(nodes)) {
    double integral = 0;
    for (size_t k = 0; k < polynomial.size(); ++k) integral += polynomial[k] * powers[k];
    integrals.push_back(integral * levels.front().sigma / levels.front().alpha);
  }
  return integrals;
}

}  // namespace

std::unique_ptr<Sampler> make_deis(const JsonConfig& config, const SamplerRun& run) {
  refuse_option(config, "use_dynamic_shifting");
  // Names of other solvers select the only one available, so that their files can be used.
  read_choice(config, "algorithm_type", "deis", {"deis", "dpmsolver", "dpmsolver++"});
  read_choice(config, "solver_type", "logrho", {"logrho", "midpoint", "heun", "bh1", "bh2"});
  const int64_t most = std::min<int64_t>(config.integer("solver_order", 2), 3);
  if (most < 1) config.fail("solver_order", "positive");
  const bool flow = config.boolean("use_flow_sigmas", false);
  const Prediction prediction = read_prediction(config, flow);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kIgnored);
  const SigmaLevels raw = levels_above_zero(config, schedule, run.steps, schedule.size(), flow);
  const auto count = static_cast<int64_t>(raw.timesteps.size());
  const bool few_steps = config.boolean("lower_order_final", true) && count < 15;

  LinearSolver solver;
  solver.limit = read_thresholding(config);
  solver.has_too_many_steps = repeats({raw.sigmas.begin(), raw.sigmas.end() - 1});
  const std::vector<NoiseLevel> levels = noise_levels({raw.sigmas.begin(), raw.sigmas.end()}, flow);
  for (int64_t i = 0; i < count; ++i) {
    const NoiseLevel& source = levels[static_cast<size_t>(i)];
    const NoiseLevel& target = levels[static_cast<size_t>(i) + 1];
    int64_t order = std::min(most, i + 1);
    if (few_steps) order = std::min(order, count - i);
    std::vector<NoiseLevel> known;  // newest first
    for (int64_t k = 0; k < order; ++k) known.push_back(levels[static_cast<size_t>(i - k)]);
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[static_cast<size_t>(i)]);  // an integer in diffusers
    if (solver.limit) {
      set_conversion(step, /*on_samples=*/false, prediction, source, solver.limit);
    } else {
      step.sample = to_sample(prediction, source);
      step.convert = to_noise(prediction, source);
    }
    step.predictor.z = target.alpha / source.alpha;
    step.predictor.history = log_rho_integrals(known, target);
    for (double& weight : step.predictor.history) weight *= target.alpha;
    solver.steps.push_back(std::move(step));
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
