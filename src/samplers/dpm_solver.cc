#include "samplers/dpm_solver.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

struct DpmOptions {
  bool on_samples;  // the "++": integrates x_0 instead of the noise
  bool stochastic;
  bool heun;
  int64_t order;
  bool lower_order_final;
  bool euler_at_final;
  bool zero_final_sigma;
  bool flow;
  Prediction prediction;
};

DpmOptions read_options(const JsonConfig& config) {
  refuse_option(config, "thresholding");
  refuse_option(config, "use_dynamic_shifting");
  const std::string variance = config.string("variance_type", "", Null::kDefault);
  if (variance == "learned" || variance == "learned_range") refuse_option(config, "variance_type");
  // Names of other solvers select the defaults here, so that their files can be used.
  const std::string algorithm =
      read_choice(config, "algorithm_type", "dpmsolver++",
                  {"dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver", "deis"});
  const std::string type =
      read_choice(config, "solver_type", "midpoint", {"midpoint", "heun", "logrho", "bh1", "bh2"});
  DpmOptions options{};
  options.on_samples = algorithm.ends_with("++") || algorithm == "deis";
  options.stochastic = algorithm.starts_with("sde-");
  options.heun = type == "heun";
  // Files of other solvers may ask for more than the three implemented orders.
  options.order = std::min<int64_t>(config.integer("solver_order", 2), 3);
  if (options.order < 1) config.fail("solver_order", "positive");
  if (algorithm == "sde-dpmsolver" && options.order == 3)
    config.fail("solver_order", "1 or 2 with sde-dpmsolver");
  options.lower_order_final = config.boolean("lower_order_final", true);
  options.euler_at_final = config.boolean("euler_at_final", false);
  options.zero_final_sigma = config.string("final_sigmas_type", "zero") == "zero";
  if ((!options.on_samples || algorithm == "deis") && options.zero_final_sigma) {
    config.fail("final_sigmas_type", fmt::format("sigma_min with algorithm_type {}", algorithm));
  }
  options.flow = config.boolean("use_flow_sigmas", false);
  options.prediction = read_prediction(config, options.on_samples && options.flow);
  return options;
}

// The order of step `index` of `steps`: it rises at the start, as outputs become known, and falls at the end.
int64_t order_of_step(const DpmOptions& options, int64_t index, int64_t steps) {
  const bool few_steps = options.lower_order_final && steps < 15;
  const int64_t known = std::min(options.order, index + 1);
  if (index == steps - 1 && (options.euler_at_final || few_steps || options.zero_final_sigma)) return 1;
  if (index == steps - 2 && few_steps) return std::min<int64_t>(known, 2);
  return known;
}

// The step in terms of the newest m and its divided differences: z' = z * z + m * m0 + d1 * D1 + d2 * D2 +
// noise.
struct TaylorWeights {
  double z, m, d1, d2, noise;
};

// Computes the weights from noise level s to t. `linear` weights D1 as the midpoint rule does; d1 and d2 are
// valid only for finite lambdas.
TaylorWeights taylor_weights(const DpmOptions& options, const NoiseLevel& s, const NoiseLevel& t,
                             bool linear) {
  const double h = t.lambda() - s.lambda();
  if (options.on_samples) {
    const double scale = options.stochastic ? 2 * h : h;
    const double phi = -std::expm1(-scale);  // 1 - e^-scale
    const double decay = options.stochastic ? std::exp(-h) : 1;
    return {.z = t.sigma / s.sigma * decay,
            .m = t.alpha * phi,
            .d1 = t.alpha * (linear ? phi / 2 : 1 - phi / scale),
            // The sign of 1/2 in the stochastic case is diffusers'; a Taylor expansion has the opposite one.
            .d2 = -t.alpha * ((scale - phi) / (scale * scale) + (options.stochastic ? 0.5 : -0.5)),
            .noise = options.stochastic ? t.sigma * std::sqrt(phi) : 0};
  }
  const double phi = std::expm1(h);
  const double scale = (options.stochastic ? -2 : -1) * t.sigma;
  return {.z = t.alpha / s.alpha,
          .m = scale * phi,
          .d1 = scale * (linear ? phi / 2 : phi / h - 1),
          .d2 = scale * ((phi - h) / (h * h) - 0.5),
          .noise = options.stochastic ? t.sigma * std::sqrt(std::expm1(2 * h)) : 0};
}

// `levels` are those of steps index - 2, index - 1, index and index + 1, newest last, of which `order`
// determines how many there are.
Combination dpm_step(const DpmOptions& options, const std::vector<NoiseLevel>& levels, int64_t order) {
  const size_t last = levels.size() - 1;
  const NoiseLevel& target = levels[last];
  const NoiseLevel& source = levels[last - 1];
  const TaylorWeights weights = taylor_weights(options, source, target, order == 2 && !options.heun);
  Combination step{.z = weights.z, .output = 0, .history = {weights.m}, .noise = {}};
  if (options.stochastic) step.noise = weights.noise;
  if (order == 1) return step;
  // D1 = (m0 - m1) / r0. For order 3, (m1 - m2) / r1 gives the extrapolation of D1 to s and the second
  // difference D2.
  const double h = target.lambda() - source.lambda();
  const double r0 = (source.lambda() - levels[last - 2].lambda()) / h;
  if (order == 2) {
    step.history = {weights.m + weights.d1 / r0, -weights.d1 / r0};
    return step;
  }
  const double r1 = (levels[last - 2].lambda() - levels[last - 3].lambda()) / h;
  const double slope0 = weights.d1 * (1 + r0 / (r0 + r1)) + weights.d2 / (r0 + r1);
  const double slope1 = -(weights.d1 * r0 + weights.d2) / (r0 + r1);
  step.history = {weights.m + slope0 / r0, slope1 / r1 - slope0 / r0, -slope1 / r1};
  return step;
}

struct Levels {
  std::vector<double> sigmas;
  std::vector<double> timesteps;
};

Levels flow_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps) {
  const auto count = static_cast<double>(train_timesteps);
  const double shift = config.number("flow_shift", 1);
  std::vector<double> alphas = linspace(1, 1 / count, steps + 1);
  Levels levels;
  for (size_t i = alphas.size() - 1; i > 0; --i) {
    levels.sigmas.push_back(shifted_sigma(shift, 1 - alphas[i]));
    levels.timesteps.push_back(levels.sigmas.back() * count);
  }
  return levels;
}

Levels solver_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps, bool flow) {
  Levels levels;
  const bool lu = config.boolean("use_lu_lambdas", false);
  const bool karras = config.boolean("use_karras_sigmas", false);
  const auto respaced = respaced_sigmas(config, schedule.sigmas.back(), schedule.sigmas.front(), steps);
  if (respaced && (karras || !lu)) {
    levels.sigmas = *respaced;
  } else if (lu) {
    // Uses equal steps of lambda = -log sigma.
    for (const double level : linspace(schedule.log_sigmas.back(), schedule.log_sigmas.front(), steps)) {
      levels.sigmas.push_back(std::exp(level));
    }
  } else if (flow) {
    return flow_levels(config, schedule.size(), steps);
  } else {
    const int64_t end = schedule.count_above(config.number("lambda_min_clipped", -INFINITY));
    if (end < 1) config.fail("lambda_min_clipped", "below the largest lambda of the schedule");
    for (const double timestep : spaced_timesteps(config, "linspace", steps, end, /*skip_last=*/true)) {
      levels.timesteps.push_back(std::nearbyint(timestep));
      levels.sigmas.push_back(schedule.sigma_at(levels.timesteps.back()));
    }
    return levels;
  }
  const bool round = (karras || lu) && config.string("beta_schedule", "linear") != "squaredcos_cap_v2";
  for (const double sigma : levels.sigmas) {
    const double timestep = schedule.timestep_at(sigma);
    levels.timesteps.push_back(round ? std::nearbyint(timestep) : timestep);
  }
  return levels;
}

}  // namespace

std::unique_ptr<Sampler> make_dpm_solver(const JsonConfig& config, const SamplerRun& run) {
  const DpmOptions options = read_options(config);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  const Levels raw = solver_levels(config, schedule, run.steps, options.flow);
  const std::vector<float> sigmas = with_final_sigma(config, raw.sigmas, schedule.sigmas.front());

  LinearSolver solver;
  solver.has_too_many_steps = repeats(raw.sigmas);
  std::vector<NoiseLevel> levels;
  levels.reserve(sigmas.size());
  for (const float sigma : sigmas) levels.push_back(noise_level(sigma, options.flow));
  const auto count = static_cast<int64_t>(raw.timesteps.size());
  for (int64_t i = 0; i < count; ++i) {
    const NoiseLevel& level = levels[static_cast<size_t>(i)];
    const int64_t order = order_of_step(options, i, count);
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[static_cast<size_t>(i)]);  // an integer in diffusers
    step.convert =
        options.on_samples ? to_sample(options.prediction, level) : to_epsilon(options.prediction, level);
    step.predictor = dpm_step(options, {levels.begin() + (i + 1 - order), levels.begin() + (i + 2)}, order);
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
