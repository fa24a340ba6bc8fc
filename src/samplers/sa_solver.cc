// SA-Solver: a stochastic Adams method with predictor and corrector (https://arxiv.org/abs/2309.05019).
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

struct SaOptions {
  bool on_samples;  // integrates x_0 instead of the noise
  int64_t predictor_order, corrector_order;
  bool lower_order_final;
  bool flow;
  Prediction prediction;
  std::optional<SampleLimit> limit;
};

int64_t read_order(const JsonConfig& config, const std::string& key) {
  const int64_t order = config.integer(key, 2);
  if (order < 1 || order > 4) config.fail(key, "from 1 to 4");
  return order;
}

SaOptions read_sa_options(const JsonConfig& config) {
  refuse_option(config, "tau_func");
  refuse_learned_variance(config);
  SaOptions options{};
  options.on_samples = read_choice(config, "algorithm_type", "data_prediction",
                                   {"data_prediction", "noise_prediction"}) == "data_prediction";
  options.predictor_order = read_order(config, "predictor_order");
  options.corrector_order = read_order(config, "corrector_order");
  options.lower_order_final = config.boolean("lower_order_final", true);
  options.flow = config.boolean("use_flow_sigmas", false);
  options.limit = read_thresholding(config);
  options.prediction = read_prediction(config, options.on_samples && options.flow);
  return options;
}

// Returns the integrals of v^k e^(rate v) between the ends, for k < count.
std::vector<double> exponential_integrals(double rate, double begin, double end, size_t count) {
  std::vector<double> integrals = {(std::exp(rate * end) - std::exp(rate * begin)) / rate};
  for (size_t k = 1; k < count; ++k) {
    const auto power = static_cast<double>(k);
    const double ends =
        std::pow(end, power) * std::exp(rate * end) - std::pow(begin, power) * std::exp(rate * begin);
    integrals.push_back((ends - power * integrals.back()) / rate);
  }
  return integrals;
}

// Returns the step from levels[to - 1] to levels[to], with tau = 1 if it is `stochastic`, else 0. The history
// of the corrector begins with the m at levels[to], that of the predictor with the m at levels[to - 1].
Combination sa_step(const SaOptions& options, const std::vector<NoiseLevel>& levels, int64_t to,
                    int64_t order, bool stochastic, bool corrector) {
  const auto level = [&](int64_t i) -> const NoiseLevel& { return levels[static_cast<size_t>(i)]; };
  const NoiseLevel& target = level(to);
  const NoiseLevel& source = level(to - 1);
  const double h = target.lambda() - source.lambda();
  const double variance = stochastic ? 1 : 0;  // tau^2
  const double rate = options.on_samples ? 1 + variance : -1;
  std::vector<double> nodes;
  for (int64_t k = 0; k < order; ++k) nodes.push_back(level(corrector ? to - k : to - 1 - k).lambda());

  Combination step;
  const std::vector<double> integrals = exponential_integrals(
      rate, source.lambda() - nodes[0], target.lambda() - nodes[0], static_cast<size_t>(order));
  for (const std::vector<double>& polynomial : lagrange_polynomials(nodes)) {
    double integral = 0;
    for (size_t k = 0; k < polynomial.size(); ++k) integral += polynomial[k] * integrals[k];
    step.history.push_back(std::exp(rate * nodes[0]) * integral);
  }
  if (options.on_samples && order == 2) {
    // diffusers changes the weights of two outputs, which does not affect the order of convergence.
    const double exact = (h * rate - 1 + std::exp(-rate * h)) / (rate * rate);
    const double change = std::exp(rate * target.lambda()) * (h * h / 2 - exact) / (nodes[0] - nodes[1]);
    step.history[0] += change;
    step.history[1] -= change;
  }
  const double scale = options.on_samples ? rate * target.sigma * std::exp(-variance * target.lambda())
                                          : -(1 + variance) * target.alpha;
  for (double& weight : step.history) weight *= scale;
  step.z = options.on_samples ? std::exp(-variance * h) * target.sigma / source.sigma
                              : target.alpha / source.alpha;
  step.noise = target.sigma *
               std::sqrt(options.on_samples ? -std::expm1(-2 * variance * h) : variance * std::expm1(2 * h));
  return step;
}

}  // namespace

std::unique_ptr<Sampler> make_sa_solver(const JsonConfig& config, const SamplerRun& run) {
  const SaOptions options = read_sa_options(config);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kIgnored);
  const int64_t end = schedule.count_unclipped(config);
  const SigmaLevels raw = levels_above_zero(config, schedule, run.steps, end, options.flow);
  const auto count = static_cast<int64_t>(raw.timesteps.size());

  LinearSolver solver;
  solver.limit = options.limit;
  solver.has_too_many_steps = repeats({raw.sigmas.begin(), raw.sigmas.end() - 1});
  const std::vector<NoiseLevel> levels = noise_levels({raw.sigmas.begin(), raw.sigmas.end()}, options.flow);
  bool stochastic = false;  // in the previous step
  for (int64_t i = 0; i < count; ++i) {
    const NoiseLevel& level = levels[static_cast<size_t>(i)];
    const int64_t left = options.lower_order_final ? count - i : count;
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[static_cast<size_t>(i)]);  // an integer in diffusers
    set_conversion(step, options.on_samples, options.prediction, level, options.limit);
    if (i > 0) {
      const int64_t order = std::min({options.corrector_order, left + 2, i + 1});
      step.corrector = sa_step(options, levels, i, order, stochastic, /*corrector=*/true);
    }
    stochastic = step.timestep >= 200 && step.timestep <= 800;
    const int64_t order = std::min({options.predictor_order, left, i + 1});
    step.predictor = sa_step(options, levels, i + 1, order, stochastic, /*corrector=*/false);
    solver.steps.push_back(std::move(step));
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
