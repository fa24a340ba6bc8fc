#include "samplers/linear_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace tessera::samplers {
namespace {

// Weights must be finite in fp32, because the latents may be fp32.
bool is_finite(double weight) {
  return std::abs(weight) <= std::numeric_limits<float>::max();
}

bool is_finite(const Combination& weights) {
  return is_finite(weights.z) && is_finite(weights.output) && is_finite(weights.noise.value_or(0)) &&
         std::all_of(weights.history.begin(), weights.history.end(), [](double w) { return is_finite(w); });
}

bool is_finite(const Conversion& convert) {
  return is_finite(convert.z / convert.divisor) && is_finite(convert.output / convert.divisor);
}

// A limit makes an infinite m finite again, so the conversion may overflow if there is one.
bool is_finite(const LinearStep& step, bool limits) {
  const Conversion& convert = step.convert;
  return is_finite(step.timestep) && is_finite(step.input_divisor) && is_finite(convert.z) &&
         is_finite(convert.output) && is_finite(convert.divisor) &&
         (!step.to_noise || is_finite(1 / step.to_noise->sigma)) && (limits || is_finite(convert)) &&
         (!step.corrector || is_finite(*step.corrector)) && is_finite(step.predictor);
}

// Sums terms into one new tensor in the order of the calls. Terms with weight zero are skipped.
class WeightedSum {
 public:
  void add(double weight, const at::Tensor& term) {
    if (weight == 0) return;
    if (sum_.defined()) {
      sum_.add_(term, weight);
    } else {
      sum_ = at::mul(term, weight);
    }
  }
  at::Tensor result() const {
    TESSERA_CHECK(sum_.defined(), "a step without weights");
    return sum_;
  }

 private:
  at::Tensor sum_;
};

// Divides at the end, so that the difference of nearly equal latents and noise keeps its digits.
at::Tensor convert(const Conversion& weights, const at::Tensor& model_output, const at::Tensor& z) {
  at::Tensor m;
  if (weights.z == 0) {
    m = at::mul(model_output, weights.output);
  } else if (weights.z == 1) {
    m = at::add(z, model_output, weights.output);
  } else {
    m = at::mul(z, weights.z).add_(model_output, weights.output);
  }
  return weights.divisor == 1 ? m : m.div_(weights.divisor);
}

// `m` has one picture, or a slice of one, in each row.
void limit_sample(const SampleLimit& limit, at::Tensor& m) {
  if (!limit.quantile) {
    m.clamp_(-limit.most, limit.most);
    if (limit.divides) m.div_(limit.most);
    return;
  }
  std::vector<int64_t> sizes(static_cast<size_t>(m.dim()), 1);
  sizes[0] = m.size(0);
  const at::Tensor bound =
      at::quantile(m.flatten(1).abs(), *limit.quantile, 1).clamp_(1, limit.most).view(sizes);
  m = m.clamp(-bound, bound).div_(bound);
}

// `history` holds the newest m last.
at::Tensor combine(const Combination& weights, const at::Tensor& z, const at::Tensor& model_output,
                   const std::vector<at::Tensor>& history, const at::Tensor& noise) {
  TESSERA_CHECK(history.size() >= weights.history.size(),
                "steps out of order: {} outputs are known, {} are needed", history.size(),
                weights.history.size());
  WeightedSum sum;
  sum.add(weights.z, z);
  sum.add(weights.output, model_output);
  for (size_t k = 0; k < weights.history.size(); ++k)
    sum.add(weights.history[k], history[history.size() - 1 - k]);
  if (weights.noise) sum.add(*weights.noise, noise);
  return sum.result();
}

}  // namespace

double NoiseLevel::lambda() const {
  return std::log(alpha) - std::log(sigma);
}

NoiseLevel noise_level(double sigma, bool flow) {
  if (flow) return {1 - sigma, sigma};
  const double alpha = 1 / std::sqrt(sigma * sigma + 1);
  return {alpha, sigma * alpha};
}

std::vector<NoiseLevel> noise_levels(const std::vector<float>& sigmas, bool flow) {
  std::vector<NoiseLevel> levels;
  for (const float sigma : sigmas) levels.push_back(noise_level(sigma, flow));
  return levels;
}

Conversion to_sample(Prediction prediction, const NoiseLevel& level) {
  switch (prediction) {
    case Prediction::kEpsilon:
      return {1, -level.sigma, level.alpha};
    case Prediction::kVelocity:
      return {level.alpha, -level.sigma, 1};
    case Prediction::kFlow:
      return {1, -level.sigma, 1};
    case Prediction::kSample:
      break;
  }
  return {0, 1, 1};
}

Conversion to_epsilon(Prediction prediction, const NoiseLevel& level) {
  switch (prediction) {
    case Prediction::kSample:
      return {1, -level.alpha, level.sigma};
    case Prediction::kVelocity:
      return {level.sigma, level.alpha, 1};
    case Prediction::kFlow:
      TESSERA_CHECK(false, "flow prediction has no conversion to epsilon");
    case Prediction::kEpsilon:
      break;
  }
  return {0, 1, 1};
}

// The model works on latents of unit variance, which are alpha times those here.
Conversion to_sample_at(Prediction prediction, double sigma) {
  const NoiseLevel level = noise_level(sigma, /*flow=*/false);
  const Conversion sample = to_sample(prediction, level);
  return {sample.z / sample.divisor * level.alpha, sample.output / sample.divisor, 1};
}

LinearStep slope_step(Prediction prediction, double sigma, double timestep) {
  LinearStep step;
  step.timestep = timestep;
  step.input_divisor = std::sqrt(sigma * sigma + 1);
  step.sample = to_sample_at(prediction, sigma);
  step.convert = step.sample;
  step.to_noise = {1, sigma};
  return step;
}

Combination renoised(Prediction prediction, const NoiseLevel& level, const NoiseLevel& next) {
  const Conversion sample = to_sample(prediction, level);
  const Conversion epsilon = to_epsilon(prediction, level);
  Combination step;
  step.z = next.sigma * epsilon.z / epsilon.divisor;
  step.output = next.sigma * epsilon.output / epsilon.divisor;
  if (next.alpha == 0) return step;  // x_0 may be undefined
  step.z += next.alpha * sample.z / sample.divisor;
  step.output += next.alpha * sample.output / sample.divisor;
  return step;
}

std::optional<SampleLimit> read_clip(const JsonConfig& config, bool clips_by_default) {
  if (!config.boolean("clip_sample", clips_by_default)) return std::nullopt;
  return SampleLimit{.most = config.number("clip_sample_range", 1)};
}

std::optional<SampleLimit> read_thresholding(const JsonConfig& config) {
  if (!config.boolean("thresholding", false)) return std::nullopt;
  const double quantile = config.number("dynamic_thresholding_ratio", 0.995);
  if (!(quantile >= 0 && quantile <= 1)) config.fail("dynamic_thresholding_ratio", "from 0 to 1");
  SampleLimit limit{.most = config.number("sample_max_value", 1), .divides = true};
  if (!(limit.most > 0)) config.fail("sample_max_value", "positive");
  if (limit.most > 1) limit.quantile = quantile;
  return limit;
}

std::optional<SampleLimit> read_limit(const JsonConfig& config, bool clips_by_default) {
  const auto thresholding = read_thresholding(config);
  return thresholding ? thresholding : read_clip(config, clips_by_default);
}

void set_conversion(LinearStep& step, bool on_samples, Prediction prediction, const NoiseLevel& level,
                    const std::optional<SampleLimit>& limit) {
  const bool by_sample = on_samples || limit;
  step.sample = to_sample(prediction, level);
  step.convert = by_sample ? step.sample : to_epsilon(prediction, level);
  if (by_sample && !on_samples) step.to_noise = level;
}

LinearSampler::LinearSampler(LinearSolver solver, const std::string& where) : solver_(std::move(solver)) {
  for (const LinearStep& step : solver_.steps) {
    if (!is_finite(step, solver_.limit.has_value()) || !is_finite(solver_.init_noise_sigma)) {
      if (solver_.has_too_many_steps)
        usage_error(field("num_inference_steps"), "{} steps are more than this schedule has noise levels",
                    solver_.steps.size());
      input_error(
          where,
          "step {} of {} divides by zero or overflows with these options; choose another number of steps or "
          "sampler",
          timesteps_.size() + 1, solver_.steps.size());
    }
    timesteps_.push_back(step.timestep);
    max_history_ = std::max(max_history_, step.predictor.history.size());
    if (step.corrector) max_history_ = std::max(max_history_, step.corrector->history.size());
  }
}

bool LinearSampler::needs_noise(int64_t index) const {
  return solver_.steps.at(static_cast<size_t>(index)).predictor.noise.has_value();
}

at::Tensor LinearSampler::scale_model_input(const at::Tensor& z, int64_t index) const {
  const double divisor = solver_.steps.at(static_cast<size_t>(index)).input_divisor;
  return divisor == 1 ? z : at::div(z, divisor);
}

at::Tensor LinearSampler::step(const at::Tensor& model_output, int64_t index, const at::Tensor& z,
                               SamplerState& state, const at::Tensor& noise) const {
  const auto position = static_cast<size_t>(index);
  const LinearStep& step = solver_.steps.at(position);
  TESSERA_CHECK(z.sizes() == model_output.sizes(), "latents and model output differ in shape");
  TESSERA_CHECK(!step.predictor.noise || noise.defined(), "step {} needs noise", index);

  std::vector<at::Tensor>& history = state.history;
  if (max_history_ > 0) {
    at::Tensor m = convert(step.convert, model_output, z);
    if (solver_.limit) limit_sample(*solver_.limit, m);
    history.push_back(step.to_noise ? at::sub(z, m, step.to_noise->alpha).div_(step.to_noise->sigma) : m);
  }
  at::Tensor entered = z;
  if (step.corrector) {
    TESSERA_CHECK(!state.extra.empty(), "steps out of order: the latents of the step before are not known");
    entered = combine(*step.corrector, state.extra.front(), model_output, history, state.extra.back());
  }
  at::Tensor result = combine(step.predictor, entered, model_output, history, noise);

  if (history.size() >= std::max<size_t>(max_history_, 1)) history.erase(history.begin());
  state.extra.clear();
  if (position + 1 < solver_.steps.size() && solver_.steps[position + 1].corrector) {
    state.extra.push_back(step.corrector ? entered : entered.clone());
    if (solver_.steps[position + 1].corrector->noise) state.extra.push_back(noise.clone());
  }
  return result;
}

at::Tensor LinearSampler::predicted_sample(const at::Tensor& model_output, int64_t index,
                                           const at::Tensor& z) const {
  at::Tensor sample = convert(solver_.steps.at(static_cast<size_t>(index)).sample, model_output, z);
  if (solver_.limit) limit_sample(*solver_.limit, sample);
  return sample;
}

std::vector<std::vector<double>> lagrange_polynomials(const std::vector<double>& nodes) {
  std::vector<std::vector<double>> polynomials;
  for (size_t one = 0; one < nodes.size(); ++one) {
    std::vector<double> polynomial = {1};
    for (size_t zero = 0; zero < nodes.size(); ++zero) {
      if (zero == one) continue;
      // Multiplies by (x - nodes[zero]) / (nodes[one] - nodes[zero]).
      const double distance = nodes[one] - nodes[zero];
      std::vector<double> product(polynomial.size() + 1, 0);
      for (size_t power = 0; power < polynomial.size(); ++power) {
        product[power] -= polynomial[power] * (nodes[zero] - nodes[0]) / distance;
        product[power + 1] += polynomial[power] / distance;
      }
      polynomial = std::move(product);
    }
    polynomials.push_back(std::move(polynomial));
  }
  return polynomials;
}

}  // namespace tessera::samplers
