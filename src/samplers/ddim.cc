#include "samplers/ddim.h"

#include <cmath>

#include "core/error.h"
#include "samplers/linear_sampler.h"
#include "samplers/schedule.h"

namespace tessera::samplers {
namespace {

// z' = sqrt(a') x_0 + sqrt(1 - a') noise, where a' is the product of alphas after the step.
LinearStep ddim_step(Prediction prediction, double alpha_cumprod, double next_alpha_cumprod, bool clip) {
  const NoiseLevel level{std::sqrt(alpha_cumprod), std::sqrt(1 - alpha_cumprod)};
  const NoiseLevel next{std::sqrt(next_alpha_cumprod), std::sqrt(1 - next_alpha_cumprod)};
  const Conversion sample = to_sample(prediction, level);
  const Conversion epsilon = to_epsilon(prediction, level);
  LinearStep step;
  step.predictor.z = next.sigma * epsilon.z / epsilon.divisor;
  step.predictor.output = next.sigma * epsilon.output / epsilon.divisor;
  if (clip) {
    // Only x_0 is clipped; the noise stays as it was predicted.
    step.convert = sample;
    step.predictor.history = {next.alpha};
  } else {
    step.predictor.z += next.alpha * sample.z / sample.divisor;
    step.predictor.output += next.alpha * sample.output / sample.divisor;
  }
  return step;
}

}  // namespace

std::unique_ptr<Sampler> make_ddim(const JsonConfig& config, int64_t steps, int64_t /*sample_tokens*/) {
  refuse_option(config, "thresholding");
  const Prediction prediction = read_prediction(config, /*flow=*/false);
  const TrainingSchedule schedule = training_schedule(config, /*finite_sigmas=*/false);
  const std::vector<float>& products = schedule.alphas_cumprod;
  const float final_product = config.boolean("set_alpha_to_one", true) ? 1.0F : products.front();

  LinearSolver solver;
  if (config.boolean("clip_sample", true)) solver.clip = config.number("clip_sample_range", 1);
  for (const double spaced :
       spaced_timesteps(config, "leading", steps, schedule.size(), /*skip_last=*/false)) {
    const auto timestep = static_cast<int64_t>(std::nearbyint(spaced));
    const int64_t next = timestep - schedule.size() / steps;
    if (timestep < 0 || timestep >= schedule.size()) {
      usage_error(config.where(),
                  "{} steps with this steps_offset reach timestep {}; the model knows 0 to {}", steps,
                  timestep, schedule.size() - 1);
    }
    const float next_product = next >= 0 ? products[static_cast<size_t>(next)] : final_product;
    solver.steps.push_back(ddim_step(prediction, products[static_cast<size_t>(timestep)], next_product,
                                     solver.clip.has_value()));
    solver.steps.back().timestep = static_cast<double>(timestep);
  }
  return std::make_unique<LinearSampler>(std::move(solver), config.where());
}

}  // namespace tessera::samplers
