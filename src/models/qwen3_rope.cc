// Rotary frequencies as transformers computes them (its modeling_rope_utils.py), in fp32.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/qwen3.h"

namespace tessera::models {
namespace {

constexpr double kDefaultRopeTheta = 10000;  // transformers' default, if the file has none
constexpr double kMostRopeFactor = 1e9;
constexpr int64_t kMostRopePositions = int64_t{1} << 40;

// What a scaling reads: `rope` is the object of the rotation, `file` the whole file.
struct RopeScaling {
  const JsonConfig &file, &rope;
  double theta;
  int64_t head_dim;

  double factor() const { return rope.number_within("factor", 1e-9, kMostRopeFactor); }
  int64_t positions() const { return file.count("max_position_embeddings", kMostRopePositions, 32768); }
  // The positions of training. If the file has the key outside the rotation, that one counts.
  int64_t original_positions() const {
    const char* const key = "original_max_position_embeddings";
    if (file.has(key)) return file.count(key, kMostRopePositions);
    return rope.has(key) ? rope.count(key, kMostRopePositions) : positions();
  }
  double factor_of_positions() const {
    return rope.has("factor") ? factor()
                              : static_cast<double>(positions()) / static_cast<double>(original_positions());
  }
};

// Returns theta^(-2 i / head_dim) for the first `pairs` pairs.
at::Tensor unscaled(double theta, int64_t head_dim, int64_t pairs) {
  const at::Tensor exponent = at::arange(0, 2 * pairs, 2, at::kFloat) / static_cast<double>(head_dim);
  return at::pow(theta, exponent).reciprocal();
}

at::Tensor proportional(const RopeScaling& scaling) {
  const double share = scaling.rope.number_within("partial_rotary_factor", 0, 1, 1);
  const double factor = scaling.rope.has("factor") ? scaling.factor() : 1;
  const auto turned = static_cast<int64_t>(share * static_cast<double>(scaling.head_dim)) / 2;
  return at::constant_pad_nd(unscaled(scaling.theta, scaling.head_dim, turned),
                             {0, scaling.head_dim / 2 - turned}) /
         factor;
}

// Llama 3.1: pairs that turn slowly are slowed further, those in the middle less.
at::Tensor llama3(const RopeScaling& scaling) {
  const at::Tensor plain = unscaled(scaling.theta, scaling.head_dim, scaling.head_dim / 2);
  const double factor = scaling.factor(), low = scaling.rope.number("low_freq_factor"),
               high = scaling.rope.number("high_freq_factor");
  const auto positions = static_cast<double>(scaling.original_positions());
  const at::Tensor wavelength = 2 * std::numbers::pi / plain;
  const at::Tensor is_long = wavelength > positions / low, is_short = wavelength < positions / high;
  const at::Tensor slowed = at::where(is_long, plain / factor, plain);
  const at::Tensor smooth = (positions / wavelength - low) / (high - low);
  return at::where(is_long.logical_or(is_short), slowed, (1 - smooth) * slowed / factor + smooth * slowed);
}

// YaRN (arXiv:2309.00071). Sets the factor of cosines and sines, too.
at::Tensor yarn(const RopeScaling& scaling, double& attention_factor) {
  const JsonConfig& rope = scaling.rope;
  const auto positions = static_cast<double>(scaling.original_positions());
  const double factor = scaling.factor_of_positions();
  const auto grown = [&](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  const auto number_or = [&](const char* key, double otherwise) {
    const double value = rope.number(key, otherwise, Null::kDefault);
    return value == 0 ? otherwise : value;
  };
  const double mscale = number_or("mscale", 0), mscale_all = number_or("mscale_all_dim", 0);
  attention_factor = rope.number(
      "attention_factor", mscale != 0 && mscale_all != 0 ? grown(mscale) / grown(mscale_all) : grown(1),
      Null::kDefault);
  // Returns the pair that turns so many times over the positions of training.
  const auto dim = static_cast<double>(scaling.head_dim);
  const auto pair_of = [&](double turns) {
    return dim * std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(scaling.theta));
  };
  double first = pair_of(number_or("beta_fast", 32)), last = pair_of(number_or("beta_slow", 1));
  if (rope.boolean("truncate", true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1);
  if (first == last) last += 0.001;
  const int64_t pairs = scaling.head_dim / 2;
  const at::Tensor kept = 1 - ((at::arange(pairs, at::kFloat) - first) / (last - first)).clamp(0, 1);
  const at::Tensor powers = at::pow(scaling.theta, at::arange(0, 2 * pairs, 2, at::kFloat) / dim);
  return (factor * powers).reciprocal() * (1 - kept) + powers.reciprocal() * kept;
}

// LongRoPE (arXiv:2402.13753): the file says by how much each pair is slowed, in texts of training and in
// longer ones.
void set_longrope(Qwen3Rope& rope, const RopeScaling& scaling) {
  const int64_t pairs = scaling.head_dim / 2;
  const auto slowed = [&](const char* key) {
    const std::vector<double> by = scaling.rope.numbers(key);
    if (std::ssize(by) != pairs) scaling.rope.fail(key, fmt::format("{} numbers, half of head_dim", pairs));
    return unscaled(scaling.theta, scaling.head_dim, pairs) / at::tensor(by, at::kFloat);
  };
  rope.frequencies = slowed("short_factor");
  rope.beyond = [longer = slowed("long_factor")](int64_t /*tokens*/) { return longer; };
  rope.most = scaling.original_positions();
  const double factor = scaling.factor_of_positions();
  const double by_length = std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(rope.most)));
  rope.factor = scaling.rope.number("attention_factor", factor <= 1 ? 1 : by_length, Null::kDefault);
}

// In texts longer than those of training, theta grows with the length ("NTK-aware" scaling).
void set_dynamic(Qwen3Rope& rope, const RopeScaling& scaling) {
  const auto dim = static_cast<double>(scaling.head_dim);
  const int64_t head_dim = scaling.head_dim;
  const double factor = scaling.factor(), theta = scaling.theta;
  rope.frequencies = unscaled(theta, head_dim, head_dim / 2);
  rope.most = scaling.positions();
  rope.beyond = [=, most = static_cast<double>(rope.most)](int64_t tokens) {
    const double grown = factor * static_cast<double>(tokens) / most - (factor - 1);
    return unscaled(theta * std::pow(grown, dim / (dim - 2)), head_dim, head_dim / 2);
  };
}

}  // namespace

// transformers 5 saves `rope_parameters`. Published files have `rope_theta`, and `rope_scaling` if the angles
// are scaled; the latter counts if it is there.
Qwen3Rope::Qwen3Rope(const JsonConfig& json, int64_t head_dim) {
  const double theta_of_file = json.number_within("rope_theta", 1e-3, 1e30, kDefaultRopeTheta);
  const bool is_scaled = json.has("rope_scaling") && !json.value("rope_scaling")->empty();
  const std::string key = is_scaled ? "rope_scaling" : "rope_parameters";
  const JsonConfig rope = json.has(key) ? json.object(key) : JsonConfig();
  for (const Json& value : rope.values()) {
    if (value.is_object()) json.refuse(key, "only one rotation for all blocks can run");
  }
  theta = rope.number_within("rope_theta", 1e-3, 1e30, theta_of_file);
  const std::string of_old_files = rope.string("type", "default"),
                    type = rope.string("rope_type", of_old_files);
  const RopeScaling scaling{json, rope, theta, head_dim};
  if (type == "default" || type == "linear") {
    frequencies = unscaled(theta, head_dim, head_dim / 2);
    if (type == "linear") frequencies /= scaling.factor();
  } else if (type == "proportional") {
    frequencies = proportional(scaling);
  } else if (type == "llama3") {
    frequencies = llama3(scaling);
  } else if (type == "yarn") {
    frequencies = yarn(scaling, factor);
  } else if (type == "longrope") {
    set_longrope(*this, scaling);
  } else if (type == "dynamic") {
    set_dynamic(*this, scaling);
  } else {
    json.refuse(key, "angles can have the scalings linear, dynamic, yarn, longrope, llama3 and proportional");
  }
}

}  // namespace tessera::models
