// UniPC: a multistep predictor, and a corrector that needs no further model output
// (https://arxiv.org/abs/2302.04867).
#include "samplers/solvers.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

struct UniOptions {
  bool on_samples;  // integrates x_0 instead of the noise
  bool bh1;         // B(h) = h instead of e^h - 1
  int64_t order;
  bool lower_order_final;
  std::vector<int64_t> uncorrected;  // steps after which no corrector runs
  bool flow;
  Prediction prediction;
  std::optional<SampleLimit> limit;
};

UniOptions read_options(const JsonConfig& config) {
  refuse_option(config, "solver_p");
  refuse_option(config, "use_dynamic_shifting");
  UniOptions options{};
  options.on_samples = config.boolean("predict_x0", true);
  // Names of other solvers select the default here, so that their files can be used.
  options.bh1 =
      read_choice(config, "solver_type", "bh2", {"bh1", "bh2", "midpoint", "heun", "logrho"}) == "bh1";
  options.order = config.integer("solver_order", 2);
  if (options.order < 1) config.fail("solver_order", "positive");
  options.lower_order_final = config.boolean("lower_order_final", true);
  options.uncorrected = config.integers("disable_corrector", std::vector<int64_t>{});
  options.flow = config.boolean("use_flow_sigmas", false);
  if (options.on_samples) options.limit = read_thresholding(config);  // has no effect otherwise
  if (!options.flow) refuse_option(config, "shift_terminal");
  options.prediction = read_prediction(config, options.on_samples && options.flow);
  return options;
}

// Solves sum_k rho_k r_k^(i-1) = b_i for i = 1..n (eq. 8 of the paper), n = ratios.size(); returns NaN if two
// ratios are equal.
std::vector<double> solve_rho(const std::vector<double>& ratios, double hh, double b_of_h) {
  const auto count = static_cast<int64_t>(ratios.size());
  at::Tensor matrix = at::empty({count, count}, at::kDouble);
  at::Tensor right = at::empty({count}, at::kDouble);
  double phi = std::expm1(hh) / hh - 1;  // hh phi_(i+1)(hh)
  double factorial = 1;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < count; ++k) {
      matrix[i][k].fill_(std::pow(ratios[static_cast<size_t>(k)], static_cast<double>(i)));
    }
    right[i].fill_(phi * factorial / b_of_h);
    factorial *= static_cast<double>(i + 2);
    phi = phi / hh - 1 / factorial;
  }
  const auto [rho, info] = at::linalg_solve_ex(matrix, right);
  if (info.item<int>() != 0) return std::vector<double>(ratios.size(), NAN);
  return {rho.const_data_ptr<double>(), rho.const_data_ptr<double>() + count};
}

// Returns the step from levels[to - 1] to levels[to]. The predictor's history is m0 (at levels[to - 1]), m1,
// ...; the corrector's has the m at levels[to] before them.
Combination uni_step(const UniOptions& options, const std::vector<NoiseLevel>& levels, int64_t to,
                     int64_t order, bool corrector) {
  const auto level = [&](int64_t i) -> const NoiseLevel& { return levels[static_cast<size_t>(i)]; };
  const NoiseLevel& target = level(to);
  const NoiseLevel& source = level(to - 1);
  const double h = target.lambda() - source.lambda();
  const double hh = options.on_samples ? -h : h;
  const double b_of_h = options.bh1 ? hh : std::expm1(hh);
  std::vector<double> ratios;
  for (int64_t k = 1; k < order; ++k) ratios.push_back((level(to - 1 - k).lambda() - source.lambda()) / h);
  if (corrector) ratios.push_back(1);
  std::vector<double> rho = {0.5};  // for one ratio, instead of the solution
  if (ratios.size() > 1) rho = solve_rho(ratios, hh, b_of_h);

  const double scale = options.on_samples ? -target.alpha : -target.sigma;
  Combination step;
  step.z = options.on_samples ? target.sigma / source.sigma : target.alpha / source.alpha;
  step.history.assign(ratios.size() + 1, 0);
  const size_t m0 = corrector ? 1 : 0;
  step.history[m0] = scale * std::expm1(hh);
  for (size_t k = 0; k < ratios.size(); ++k) {
    const double weight = scale * b_of_h * rho[k] / ratios[k];
    const bool current = corrector && k + 1 == ratios.size();
    step.history[current ? 0 : m0 + 1 + k] += weight;
    step.history[m0] -= weight;
  }
  return step;
}

struct Levels {
  std::vector<double> timesteps;
  std::vector<float> sigmas;  // one more than timesteps
};

Levels flow_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps) {
  const auto count = static_cast<double>(train_timesteps);
  std::vector<double> sigmas = linspace(1, 1 / count, steps + 1);
  sigmas.pop_back();
  const double shift = config.number("flow_shift", 1);
  for (double& sigma : sigmas) sigma = shifted_sigma(shift, sigma);
  stretch_to_terminal(config, sigmas);
  // At sigma = 1 the signal would vanish, and lambda would be infinite.
  constexpr double kMargin = 1e-6;
  if (std::abs(sigmas.front() - 1) < kMargin) sigmas.front() -= kMargin;
  Levels levels{.timesteps = {}, .sigmas = with_final_sigma(config, sigmas, sigmas.back())};
  for (const double sigma : sigmas) levels.timesteps.push_back(sigma * count);
  return levels;
}

Levels solver_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps, bool flow) {
  Levels levels;
  auto respaced = respaced_sigmas(config, schedule.sigmas.back(), schedule.sigmas.front(), steps);
  if (respaced) {
    const bool karras = config.boolean("use_karras_sigmas", false);
    for (double& sigma : *respaced) {
      if (karras && flow) {
        sigma = sigma / (sigma + 1);
        levels.timesteps.push_back(sigma * static_cast<double>(schedule.size()));
      } else {
        const double timestep = schedule.timestep_at(sigma);
        levels.timesteps.push_back(karras ? std::nearbyint(timestep) : timestep);
      }
    }
    levels.sigmas = with_final_sigma(config, *respaced, respaced->back());
  } else if (flow) {
    return flow_levels(config, schedule.size(), steps);
  } else {
    SigmaLevels rounded = rounded_levels(config, schedule, steps, schedule.size());
    levels.timesteps = std::move(rounded.timesteps);
    levels.sigmas = with_final_sigma(config, rounded.sigmas, schedule.sigmas.front());
  }
  return levels;
}

}  // namespace

std::unique_ptr<Sampler> make_unipc(const JsonConfig& config, const SamplerRun& run) {
  const UniOptions options = read_options(config);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kNearly);
  const Levels raw = solver_levels(config, schedule, run.steps, options.flow);

  LinearSolver solver;
  solver.limit = options.limit;
  solver.has_too_many_steps = repeats({raw.sigmas.begin(), raw.sigmas.end() - 1});
  const std::vector<NoiseLevel> levels = noise_levels(raw.sigmas, options.flow);
  const auto count = static_cast<int64_t>(raw.timesteps.size());
  int64_t last_order = 0;
  for (int64_t i = 0; i < count; ++i) {
    const NoiseLevel& level = levels[static_cast<size_t>(i)];
    LinearStep step;
    step.timestep = std::trunc(raw.timesteps[static_cast<size_t>(i)]);  // an integer in diffusers
    step.sample = to_sample(options.prediction, level);
    step.convert = options.on_samples ? step.sample : to_epsilon(options.prediction, level);
    const bool correct = i > 0 && std::find(options.uncorrected.begin(), options.uncorrected.end(), i - 1) ==
                                      options.uncorrected.end();
    if (correct) step.corrector = uni_step(options, levels, i, last_order, /*corrector=*/true);
    last_order = std::min(options.order, i + 1);
    if (options.lower_order_final) last_order = std::min(last_order, count - i);
    step.predictor = uni_step(options, levels, i + 1, last_order, /*corrector=*/false);
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
