#include "samplers/dpm_solver.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/dpm_step.h"
#include "samplers/sigma_levels.h"

namespace tessera::samplers {
namespace {

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
    const int64_t end = schedule.count_above(config.number("lambda_min_clipped", -INFINITY));
    if (end < 1) config.fail("lambda_min_clipped", "below the largest lambda of the schedule");
    for (const double timestep : spaced_timesteps(config, "linspace", steps, end, /*skip_last=*/true)) {
      levels.timesteps.push_back(std::nearbyint(timestep));
      levels.sigmas.push_back(schedule.sigma_at(levels.timesteps.back()));
    }
    return levels;
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

std::unique_ptr<Sampler> make_dpm_solver(const JsonConfig& config, const SamplerRun& run) {
  const DpmOptions options = read_dpm_options(config, /*lower_order_final=*/true);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  const SigmaLevels raw = solver_levels(config, schedule, run.steps, options.flow, /*rounds_cosine=*/false);
  const std::vector<float> sigmas = with_final_sigma(config, raw.sigmas, schedule.sigmas.front());

  LinearSolver solver;
  solver.limit = options.limit;
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
    set_conversion(step, options.on_samples, options.prediction, level, options.limit);
    step.predictor = dpm_step(options, {levels.begin() + (i + 1 - order), levels.begin() + (i + 2)}, order);
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

// Blocks of steps of the orders 1, 2, ..., each of which begins at the first level of its block.
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
  std::vector<NoiseLevel> levels;
  for (const float sigma : with_final_sigma(config, raw.sigmas, schedule.sigmas.front()))
    levels.push_back(noise_level(sigma, options.flow));
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
