#include "samplers/lms.h"

#include <algorithm>

#include "samplers/sigma_levels.h"

namespace tessera::samplers {
namespace {

// The integrals from nodes[0] to `end` of the polynomials that are 1 at one node and 0 at the others. They
// are exact; diffusers integrates numerically.
std::vector<double> lagrange_integrals(const std::vector<double>& nodes, double end) {
  std::vector<double> integrals;
  for (size_t one = 0; one < nodes.size(); ++one) {
    std::vector<double> polynomial = {1};  // coefficients of powers of (sigma - nodes[0])
    for (size_t zero = 0; zero < nodes.size(); ++zero) {
      if (zero == one) continue;
      const double distance = nodes[one] - nodes[zero];
      std::vector<double> product(polynomial.size() + 1, 0);
      for (size_t power = 0; power < polynomial.size(); ++power) {
        product[power] -= polynomial[power] * (nodes[zero] - nodes[0]) / distance;
        product[power + 1] += polynomial[power] / distance;
      }
      polynomial = std::move(product);
    }
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
    // Alone among the classes, this one respaces by Karras between the schedule's own ends.
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
