#include "samplers/dpm_solver.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/schedule.h"
#include "samplers/solvers.h"

namespace tessera::samplers {
namespace {

// Expresses the step in terms of the newest m and its divided differences: z' = z * z + m * m0 + d1 * D1 + d2
// * D2 + noise.
struct TaylorWeights {
  double z, m, d1, d2, noise;
};

// Returns the square root of a variance, which may be below 0 by a rounding error if two levels are nearly
// equal.
double deviation(double variance) {
  constexpr double kRounding = 1e-6;
  return std::sqrt(variance > -kRounding ? std::max(variance, 0.0) : variance);
}

// Computes the weights from noise level s to t. `linear` weights D1 like the midpoint rule; d1 and d2 are
// valid only for finite lambdas.
TaylorWeights taylor_weights(const DpmOptions& options, const NoiseLevel& s, const NoiseLevel& t,
                             bool linear) {
  const double h = t.lambda() - s.lambda();
  if (options.on_samples) {
    const double scale = options.stochastic ? 2 * h : h;
    const double phi = -std::expm1(-scale);  // negative if flow matching's last sigma is not the smallest
    const double decay = options.stochastic ? std::exp(-h) : 1;
    return {.z = t.sigma / s.sigma * decay,
            .m = t.alpha * phi,
            .d1 = t.alpha * (linear ? phi / 2 : 1 - phi / scale),
            // In the stochastic case, the sign of 1/2 is diffusers'; a Taylor expansion has the opposite
            // sign.
            .d2 = -t.alpha * ((scale - phi) / (scale * scale) + (options.stochastic ? 0.5 : -0.5)),
            .noise = options.stochastic ? t.sigma * deviation(phi) : 0};
  }
  const double phi = std::expm1(h);
  const double scale = (options.stochastic ? -2 : -1) * t.sigma;
  return {.z = t.alpha / s.alpha,
          .m = scale * phi,
          .d1 = scale * (linear ? phi / 2 : phi / h - 1),
          .d2 = scale * ((phi - h) / (h * h) - 0.5),
          .noise = options.stochastic ? t.sigma * deviation(std::expm1(2 * h)) : 0};
}

SigmaLevels solver_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                          bool flow, bool rounds_cosine) {
  SigmaLevels levels;
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
    return flow_sigma_levels(config, schedule.size(), steps);
  } else {
    return rounded_levels(config, schedule, steps, schedule.count_unclipped(config));
  }
  const bool cosine = config.string("beta_schedule", "linear") == "squaredcos_cap_v2";
  const bool round = (karras || lu) && (rounds_cosine || !cosine);
  for (const double sigma : levels.sigmas) {
    const double timestep = schedule.timestep_at(sigma);
    levels.timesteps.push_back(round ? std::nearbyint(timestep) : timestep);
  }
  return levels;
}

}  // namespace

DpmOptions read_dpm_options(const JsonConfig& config, bool lower_order_final) {
  refuse_option(config, "use_dynamic_shifting");
  refuse_learned_variance(config);
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
  options.lower_order_final = config.boolean("lower_order_final", lower_order_final);
  options.euler_at_final = config.boolean("euler_at_final", false);
  options.zero_final_sigma = config.string("final_sigmas_type", "zero") == "zero";
  if ((!options.on_samples || algorithm == "deis") && options.zero_final_sigma) {
    config.fail("final_sigmas_type", fmt::format("sigma_min with algorithm_type {}", algorithm));
  }
  options.flow = config.boolean("use_flow_sigmas", false);
  options.limit = read_thresholding(config);
  options.prediction = read_prediction(config, options.on_samples && options.flow);
  return options;
}

int64_t order_of_step(const DpmOptions& options, int64_t index, int64_t steps) {
  const bool few_steps = options.lower_order_final && steps < 15;
  const int64_t known = std::min(options.order, index + 1);
  if (index == steps - 1 && (options.euler_at_final || few_steps || options.zero_final_sigma)) return 1;
  if (index == steps - 2 && few_steps) return std::min<int64_t>(known, 2);
  return known;
}

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

Combination singlestep_dpm_step(const DpmOptions& options, const std::vector<NoiseLevel>& levels) {
  const size_t order = levels.size() - 1;
  if (order == 1) return dpm_step(options, levels, 1);
  const NoiseLevel& source = levels.front();
  const NoiseLevel& target = levels.back();
  const TaylorWeights weights = taylor_weights(options, source, target, order == 2 && !options.heun);
  Combination step{.z = weights.z, .output = 0, .history = {}, .noise = {}};
  if (options.stochastic) step.noise = weights.noise;
  // D1 = (m0 - m at the source) / r0; the other slope of order 3 is that of m1.
  const double h = target.lambda() - source.lambda();
  const double r0 = (levels[order - 1].lambda() - source.lambda()) / h;
  double slope0 = weights.d1, slope1 = 0;
  double r1 = 1;
  if (order == 3) {
    r1 = (levels[1].lambda() - source.lambda()) / h;
    if (options.heun) {
      slope0 = (2 * weights.d2 - weights.d1 * r1) / (r0 - r1);
      slope1 = (weights.d1 * r0 - 2 * weights.d2) / (r0 - r1);
    }
    step.history = {slope0 / r0, slope1 / r1, weights.m - slope0 / r0 - slope1 / r1};
  } else {
    step.history = {slope0 / r0, weights.m - slope0 / r0};
  }
  return step;
}

std::unique_ptr<Sampler> make_dpm_solver(const JsonConfig& config, const SamplerRun& run) {
  const DpmOptions options = read_dpm_options(config, /*lower_order_final=*/true);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  const SigmaLevels raw = solver_levels(config, schedule, run.steps, options.flow, /*rounds_cosine=*/false);
  const std::vector<float> sigmas = with_final_sigma(config, raw.sigmas, schedule.sigmas.front());

  LinearSolver solver;
  solver.limit = options.limit;
  solver.has_too_many_steps = repeats(raw.sigmas);
  const std::vector<NoiseLevel> levels = noise_levels(sigmas, options.flow);
  const auto count = static_cast<int64_t>(raw.timesteps.size());
  for (int64_t i = 0; i < count; ++i) {
    const NoiseLevel& level = levels[static_cast<size_t>(i)];
    const int64_t order = order_of_step(options, i, count);
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[static_cast<size_t>(i)]);  // an integer in diffusers
    set_conversion(step, options.on_samples, options.prediction, level, options.limit);
    step.predictor = dpm_step(options, {levels.begin() + (i + 1 - order), levels.begin() + (i + 2)}, order);
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

// Steps come in blocks of orders 1, 2, ..., and each begins at the first level of its block.
std::unique_ptr<Sampler> make_dpm_singlestep(const JsonConfig& config, const SamplerRun& run) {
  const DpmOptions options = read_dpm_options(config, /*lower_order_final=*/false);
  if (config.string("algorithm_type", "dpmsolver++") == "sde-dpmsolver")
    config.fail("algorithm_type", "one of dpmsolver++, sde-dpmsolver++, dpmsolver");
  if (config.integer("solver_order", 2) > 3) config.fail("solver_order", "from 1 to 3");
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kIgnored);
  Json known = config.values();  // without options of the multistep solver
  known.erase("timestep_spacing");
  known.erase("use_lu_lambdas");
  const SigmaLevels raw = solver_levels({std::move(known), config.where()}, schedule, run.steps, options.flow,
                                        /*rounds_cosine=*/true);

  LinearSolver solver;
  solver.limit = options.limit;
  solver.has_too_many_steps = repeats(raw.sigmas);
  const std::vector<NoiseLevel> levels =
      noise_levels(with_final_sigma(config, raw.sigmas, schedule.sigmas.front()), options.flow);
  const auto count = static_cast<int64_t>(raw.timesteps.size());
  const bool lower_order_final = options.lower_order_final || options.zero_final_sigma;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    const bool ends_lower = i + 1 == count && lower_order_final && count % options.order == 0;
    const int64_t order =
        ends_lower || (i + 1 == count && options.zero_final_sigma) ? 1 : i % options.order + 1;
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[index]);  // an integer in diffusers
    set_conversion(step, options.on_samples, options.prediction, levels[index], options.limit);
    // All steps of a block begin at the latents that entered it.
    if (order > 1) step.corrector = Combination{.z = 1, .output = 0, .history = {}, .noise = {}};
    step.predictor =
        singlestep_dpm_step(options, {levels.begin() + (i + 1 - order), levels.begin() + (i + 2)});
    solver.steps.push_back(std::move(step));
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
