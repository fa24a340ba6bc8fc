#include "samplers/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "samplers/options.h"

namespace tessera::samplers {
namespace {

std::vector<float> to_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

double cosine_alpha_bar(double time) {
  const double root = std::cos((time + 0.008) / 1.008 * std::numbers::pi / 2);
  return root * root;
}

at::Tensor cosine_betas(int64_t count) {
  std::vector<double> betas;
  for (int64_t i = 0; i < count; ++i) {
    const double begin = static_cast<double>(i) / static_cast<double>(count);
    const double end = static_cast<double>(i + 1) / static_cast<double>(count);
    betas.push_back(std::min(1 - cosine_alpha_bar(end) / cosine_alpha_bar(begin), 0.999));
  }
  return at::tensor(betas, at::kFloat);
}

// Betas are [T], in fp32.
at::Tensor read_betas(const JsonConfig& config) {
  const int64_t count = config.integer("num_train_timesteps", 1000);
  if (config.has("trained_betas")) {
    const std::vector<double> betas = config.numbers("trained_betas");
    const bool in_range = std::all_of(betas.begin(), betas.end(), [](double b) { return b >= 0 && b <= 1; });
    if (static_cast<int64_t>(betas.size()) != count || !in_range) {
      config.fail("trained_betas",
                  fmt::format("a list of num_train_timesteps = {} numbers from 0 to 1", count));
    }
    return at::tensor(betas, at::kFloat);
  }
  const std::string schedule =
      read_choice(config, "beta_schedule", "linear", {"linear", "scaled_linear", "squaredcos_cap_v2"});
  const double start = config.number_within("beta_start", 0, 1, 0.0001);
  const double end = config.number_within("beta_end", 0, 1, 0.02);
  if (schedule == "linear") return at::linspace(start, end, count, at::kFloat);
  if (schedule == "scaled_linear") {
    return at::linspace(std::sqrt(start), std::sqrt(end), count, at::kFloat).square();
  }
  return cosine_betas(count);
}

at::Tensor rescale_to_zero_snr(const at::Tensor& betas) {
  at::Tensor roots = at::cumprod(1.0 - betas, 0).sqrt();
  const at::Tensor first = roots[0].clone();
  const at::Tensor last = roots[-1].clone();
  roots.sub_(last).mul_(first / (first - last));
  const at::Tensor products = roots.square();
  const at::Tensor alphas =
      at::concat({products.slice(0, 0, 1), products.slice(0, 1) / products.slice(0, 0, -1)});
  return 1.0 - alphas;
}

std::vector<double> karras_sigmas(double sigma_max, double sigma_min, int64_t steps) {
  constexpr double kRho = 7;
  const double first = std::pow(sigma_max, 1 / kRho);
  const double last = std::pow(sigma_min, 1 / kRho);
  std::vector<double> sigmas = linspace(0, 1, steps);
  for (double& sigma : sigmas) sigma = std::pow(first + sigma * (last - first), kRho);
  return sigmas;
}

std::vector<double> exponential_sigmas(double sigma_max, double sigma_min, int64_t steps) {
  std::vector<double> sigmas = linspace(std::log(sigma_max), std::log(sigma_min), steps);
  for (double& sigma : sigmas) sigma = std::exp(sigma);
  return sigmas;
}

// Computes the integral of x^(a-1) (1-x)^(a-1) from 0 to x <= 1/2, as a power series.
double incomplete_beta(double a, double x) {
  double sum = 0;
  double factor = 1;  // (1-a)(2-a)...(n-a) x^n / n!
  for (int n = 0; n < 64; ++n) {
    sum += factor / (a + n);
    factor *= (n + 1 - a) * x / (n + 1);
  }
  return std::pow(x, a) * sum;
}

// Returns the x at which the Beta(a, a) distribution function, symmetric about 1/2, reaches `probability`.
double beta_quantile(double a, double probability) {
  if (probability > 0.5) return 1 - beta_quantile(a, 1 - probability);
  const double target = 2 * probability * incomplete_beta(a, 0.5);
  double low = 0;
  double high = 0.5;
  for (int i = 0; i < 64; ++i) {
    const double middle = (low + high) / 2;
    (incomplete_beta(a, middle) < target ? low : high) = middle;
  }
  return high;
}

std::vector<double> beta_sigmas(double sigma_max, double sigma_min, int64_t steps) {
  std::vector<double> sigmas = linspace(0, 1, steps);
  for (double& sigma : sigmas) sigma = sigma_min + beta_quantile(0.6, 1 - sigma) * (sigma_max - sigma_min);
  return sigmas;
}

// Returns the position of log(sigma) in ascending logarithms.
template <typename Real>
Real interpolated_index(const std::vector<float>& log_sigmas, Real sigma) {
  if (log_sigmas.size() == 1) return 0;
  const Real log_sigma = std::log(std::max(sigma, static_cast<Real>(1e-10)));
  const auto above = std::upper_bound(log_sigmas.begin(), log_sigmas.end(), log_sigma);
  const auto last = static_cast<int64_t>(log_sigmas.size()) - 2;
  const int64_t index = std::clamp<int64_t>(above - log_sigmas.begin() - 1, 0, last);
  const float low = log_sigmas[static_cast<size_t>(index)];
  const float high = log_sigmas[static_cast<size_t>(index) + 1];
  const Real weight = std::clamp<Real>((low - log_sigma) / (low - high), 0, 1);
  return (1 - weight) * static_cast<Real>(index) + weight * static_cast<Real>(index + 1);
}

}  // namespace

double TrainingSchedule::sigma_at(double timestep) const {
  if (timestep <= 0) return sigmas.front();
  const auto index = static_cast<size_t>(timestep);
  if (index + 1 >= sigmas.size()) return sigmas.back();
  const double low = sigmas[index];
  return low + (sigmas[index + 1] - low) * (timestep - static_cast<double>(index));
}

double TrainingSchedule::timestep_at(double sigma) const {
  return interpolated_index(log_sigmas, sigma);
}

float TrainingSchedule::timestep_at(float sigma) const {
  return interpolated_index(log_sigmas, sigma);
}

int64_t TrainingSchedule::count_unclipped(const JsonConfig& config) const {
  const at::Tensor products = at::tensor(alphas_cumprod, at::kFloat);
  const at::Tensor lambdas = products.sqrt().log() - (1.0 - products).sqrt().log();
  const double least = config.number("lambda_min_clipped", -INFINITY);
  const int64_t count = (lambdas >= least).sum().item<int64_t>();
  if (count < 1) config.fail("lambda_min_clipped", "below the largest lambda of the schedule");
  return count;
}

TrainingSchedule training_schedule(const JsonConfig& config, ZeroSnr zero_snr) {
  at::Tensor betas = read_betas(config);
  const bool rescale = zero_snr != ZeroSnr::kIgnored && config.boolean("rescale_betas_zero_snr", false);
  if (rescale) betas = rescale_to_zero_snr(betas);
  at::Tensor products = at::cumprod(1.0 - betas, 0);
  if (rescale && zero_snr == ZeroSnr::kNearly) products[-1].fill_(std::ldexp(1.0, -24));
  TrainingSchedule schedule{.alphas_cumprod = to_vector(products),
                            .sigmas = to_vector(((1.0 - products) / products).sqrt()),
                            .log_sigmas = {}};
  for (const float sigma : schedule.sigmas) schedule.log_sigmas.push_back(std::log(sigma));
  return schedule;
}

std::vector<double> spaced_timesteps(const JsonConfig& config, const std::string& default_spacing,
                                     int64_t steps, int64_t end, bool skip_last) {
  const std::string spacing =
      read_choice(config, "timestep_spacing", default_spacing, {"linspace", "leading", "trailing"});
  const int64_t skipped = skip_last ? 1 : 0;
  std::vector<double> timesteps;
  if (spacing == "linspace") {
    timesteps = linspace(0, static_cast<double>(end - 1), steps + skipped);
    std::reverse(timesteps.begin(), timesteps.end());
    timesteps.resize(static_cast<size_t>(steps));
  } else if (spacing == "leading") {
    const int64_t stride = end / (steps + skipped);
    if (stride == 0) {
      usage_error(config.where(), "timestep_spacing leading allows at most {} steps, got {}", end - skipped,
                  steps);
    }
    const int64_t offset = config.integer("steps_offset", 0);
    if (offset < 0 || offset >= end)
      config.fail("steps_offset", fmt::format("an integer from 0 to {}", end - 1));
    for (int64_t i = steps + skipped - 1; i >= skipped; --i) {
      timesteps.push_back(static_cast<double>(i * stride + offset));
    }
  } else {
    // The stride is the difference of the first two points, as in numpy's arange; its last bit decides the
    // rounding of halves.
    const auto first = static_cast<double>(end);
    const double train_timesteps = static_cast<double>(config.integer("num_train_timesteps", 1000));
    const double stride = (first - train_timesteps / static_cast<double>(steps)) - first;
    for (int64_t i = 0; i < steps; ++i) {
      const double timestep = std::nearbyint(first + static_cast<double>(i) * stride) - 1;
      // For some numbers of steps a rounding error gives diffusers an extra point at timestep -1, which is
      // not a noise level of any model.
      if (timestep < 0) break;
      timesteps.push_back(timestep);
    }
  }
  return timesteps;
}

std::vector<int64_t> whole_timesteps(const JsonConfig& config, int64_t steps, int64_t end) {
  std::vector<int64_t> timesteps;
  for (const double spaced : spaced_timesteps(config, "leading", steps, end, /*skip_last=*/false)) {
    timesteps.push_back(static_cast<int64_t>(std::nearbyint(spaced)));
    if (timesteps.back() < 0 || timesteps.back() >= end) {
      usage_error(config.where(),
                  "{} steps with this steps_offset reach timestep {}; the model knows 0 to {}", steps,
                  timesteps.back(), end - 1);
    }
  }
  return timesteps;
}

std::vector<double> linspace(double first, double last, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count), first);
  if (count == 1) return values;
  const double stride = (last - first) / static_cast<double>(count - 1);
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] = static_cast<double>(i) * stride + first;
  values.back() = last;
  return values;
}

std::optional<std::vector<double>> respaced_sigmas(const JsonConfig& config, double sigma_max,
                                                   double sigma_min, int64_t steps) {
  const bool karras = config.boolean("use_karras_sigmas", false);
  const bool exponential = config.boolean("use_exponential_sigmas", false);
  const bool beta = config.boolean("use_beta_sigmas", false);
  if (karras + exponential + beta > 1) {
    input_error(config.where(),
                "set only one of use_karras_sigmas, use_exponential_sigmas and use_beta_sigmas");
  }
  const double first = config.number("sigma_max", sigma_max, Null::kDefault);
  const double last = config.number("sigma_min", sigma_min, Null::kDefault);
  if (karras) return karras_sigmas(first, last, steps);
  if (exponential) return exponential_sigmas(first, last, steps);
  if (beta) return beta_sigmas(first, last, steps);
  return std::nullopt;
}

std::vector<float> with_final_sigma(const JsonConfig& config, const std::vector<double>& sigmas,
                                    double sigma_min) {
  std::vector<float> result(sigmas.begin(), sigmas.end());
  const std::string type = read_choice(config, "final_sigmas_type", "zero", {"zero", "sigma_min"});
  result.push_back(type == "zero" ? 0.0F : static_cast<float>(sigma_min));
  return result;
}

bool repeats(const std::vector<double>& sigmas) {
  return std::adjacent_find(sigmas.begin(), sigmas.end()) != sigmas.end();
}

void stretch_to_terminal(const JsonConfig& config, std::vector<double>& sigmas) {
  const double terminal = config.number("shift_terminal", 0, Null::kDefault);
  if (terminal == 0) return;
  const double scale = (1 - sigmas.back()) / (1 - terminal);
  for (double& sigma : sigmas) sigma = 1 - (1 - sigma) / scale;
}

double shifted_sigma(double shift, double sigma) {
  return shift * sigma / (1 + (shift - 1) * sigma);
}

std::vector<double> float_timesteps(const JsonConfig& config, int64_t steps,
                                    const TrainingSchedule& schedule) {
  std::vector<double> timesteps =
      spaced_timesteps(config, "linspace", steps, schedule.size(), /*skip_last=*/false);
  for (double& timestep : timesteps) timestep = static_cast<float>(timestep);
  return timesteps;
}

void respace(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps, SigmaLevels& levels) {
  double last = levels.sigmas.back();
  // If a rounding error gives diffusers the timestep -1 (spaced_timesteps()), the sigmas end at the lowest
  // level.
  const auto size = static_cast<double>(schedule.size());
  const bool trailing = config.string("timestep_spacing", "linspace") == "trailing";
  if (trailing && std::ceil(size / (size / static_cast<double>(steps))) > static_cast<double>(steps))
    last = schedule.sigmas.front();
  const auto respaced = respaced_sigmas(config, levels.sigmas.front(), last, steps);
  if (!respaced) return;
  levels.sigmas = *respaced;
  levels.timesteps.clear();
  for (const double sigma : levels.sigmas)
    levels.timesteps.push_back(static_cast<float>(schedule.timestep_at(sigma)));
}

SigmaLevels sigma_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps) {
  SigmaLevels levels{.timesteps = float_timesteps(config, steps, schedule), .sigmas = {}};
  for (const double timestep : levels.timesteps) levels.sigmas.push_back(schedule.sigma_at(timestep));
  respace(config, schedule, steps, levels);
  return levels;
}

SigmaLevels rounded_levels(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                           int64_t end) {
  SigmaLevels levels;
  for (const double timestep : spaced_timesteps(config, "linspace", steps, end, /*skip_last=*/true)) {
    levels.timesteps.push_back(std::nearbyint(timestep));
    levels.sigmas.push_back(schedule.sigma_at(levels.timesteps.back()));
  }
  return levels;
}

SigmaLevels flow_sigma_levels(const JsonConfig& config, int64_t train_timesteps, int64_t steps) {
  const auto count = static_cast<double>(train_timesteps);
  const double shift = config.number("flow_shift", 1);
  std::vector<double> alphas = linspace(1, 1 / count, steps + 1);
  SigmaLevels levels;
  for (size_t i = alphas.size() - 1; i > 0; --i) {
    levels.sigmas.push_back(shifted_sigma(shift, 1 - alphas[i]));
    levels.timesteps.push_back(levels.sigmas.back() * count);
  }
  return levels;
}

SigmaLevels levels_above_zero(const JsonConfig& config, const TrainingSchedule& schedule, int64_t steps,
                              int64_t end, bool flow) {
  SigmaLevels levels;
  if (auto respaced = respaced_sigmas(config, schedule.sigmas.back(), schedule.sigmas.front(), steps)) {
    levels.sigmas = std::move(*respaced);
    const bool round = config.boolean("use_karras_sigmas", false);
    for (const double sigma : levels.sigmas) {
      const double timestep = schedule.timestep_at(sigma);
      levels.timesteps.push_back(round ? std::nearbyint(timestep) : timestep);
    }
  } else if (flow) {
    levels = flow_sigma_levels(config, schedule.size(), steps);
  } else {
    levels = rounded_levels(config, schedule, steps, end);
    levels.sigmas.push_back(schedule.sigmas.front());
    return levels;
  }
  levels.sigmas.push_back(levels.sigmas.back());
  return levels;
}

double initial_sigma(const JsonConfig& config, double largest) {
  const bool leading = config.string("timestep_spacing", "linspace") == "leading";
  return leading ? std::sqrt(largest * largest + 1) : largest;
}

}  // namespace tessera::samplers
