// The linear multistep method of order 4 on the probability-flow ODE in x_0 + sigma * noise
// (https://arxiv.org/abs/2206.00364, eq. 3; https://github.com/crowsonkb/k-diffusion, sample_lms).
#include "samplers/solvers.h"

#include <algorithm>

#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// Returns the integrals from nodes[0] to `end` of the polynomials through the nodes. They are exact;
// diffusers integrates numerically.
std::vector<double> lagrange_integrals(const std::vector<double>& nodes, double end) {
  std::vector<double> integrals;
  for (const std::vector<double>& polynomial : lagrange_polynomials(nodes)) {
    double integral = 0;
    double factor = 1;
    for (size_t power = 0; power < polynomial.size(); ++power) {
      factor *= end - nodes[0];
      integral += polynomial[power] * factor / static_cast<double>(power + 1);
    }
    integrals.push_back(integral);
  }
  return integrals;
}

}  // namespace

std::unique_ptr<Sampler> make_lms(const JsonConfig& config, const SamplerRun& run) {
  constexpr size_t kOrder = 4;
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, ZeroSnr::kIgnored);
  Json options = config.values();
  if (config.boolean("use_karras_sigmas", false)) {
    // Unlike the other classes, this one applies Karras spacing between the schedule's own ends.
    options.erase("sigma_min");
    options.erase("sigma_max");
  }
  const SigmaLevels levels = sigma_levels({std::move(options), config.where()}, schedule, run.steps);
  std::vector<double> sigmas;
  for (const double sigma : levels.sigmas) sigmas.push_back(static_cast<float>(sigma));
  sigmas.push_back(0);

  LinearSolver solver;
  solver.init_noise_sigma = initial_sigma(config, *std::max_element(sigmas.begin(), sigmas.end()));
  solver.has_too_many_steps = repeats(sigmas);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    std::vector<double> nodes;  // newest first
    for (size_t k = 0; k < std::min(kOrder, i + 1); ++k) nodes.push_back(sigmas[i - k]);
    LinearStep step = slope_step(prediction, sigmas[i], levels.timesteps[i]);
    step.predictor.z = 1;
    step.predictor.history = lagrange_integrals(nodes, sigmas[i + 1]);
    solver.steps.push_back(step);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
