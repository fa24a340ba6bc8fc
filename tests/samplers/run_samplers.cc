// run_samplers reads a JSON array of cases from stdin. As a JSON array it writes, for each, the timesteps,
// the scale of the noise and the latents after every step, or the sampler's error. A case has a config, a
// scheduler, another one that takes its place or null, steps, tokens, eta, a seed and a shape; noise is drawn
// as in a run, and the model is smooth_model(). tools/parity_samplers.py uses it.
#include <iostream>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "engine/noise.h"
#include "samplers/options.h"
#include "samplers/sampler.h"
#include "tests/support/smooth_model.h"

namespace tessera {
namespace {

Json numbers(const at::Tensor& tensor) {
  return std::vector<float>(tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel());
}

Json run(const Json& one) {
  Json options = one.at("config");
  options["_class_name"] = one.at("scheduler");  // model_index.json names the class
  JsonConfig config(std::move(options), "config");
  if (one.at("is_stable_diffusion")) config = samplers::with_stable_diffusion_options(config);
  std::optional<std::string> other;  // a class that takes its place
  if (!one.at("other").is_null()) other = one.at("other").get<std::string>();
  const auto sampler =
      samplers::make_sampler(config, other, {one.at("steps"), one.at("tokens"), one.at("eta")});
  const auto shape = one.at("shape").get<std::vector<int64_t>>();
  engine::Noise noise({{one.at("seed").get<uint64_t>(), shape[0]}});
  at::Tensor z = noise.draw(shape) * sampler->init_noise_sigma();
  samplers::SamplerState state;
  Json latents = Json::array();
  for (int64_t i = 0; i < sampler->steps(); ++i) {
    const double timestep = sampler->timesteps()[static_cast<size_t>(i)];
    const at::Tensor fresh = sampler->needs_noise(i) ? noise.draw(shape) : at::Tensor();
    z = sampler->step(smooth_model(sampler->scale_model_input(z, i), timestep), i, z, state, fresh);
    latents.push_back(numbers(z));
  }
  return {{"timesteps", sampler->timesteps()},
          {"init_noise_sigma", sampler->init_noise_sigma()},
          {"latents", std::move(latents)}};
}

}  // namespace
}  // namespace tessera

int main() try {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  tessera::Json results = tessera::Json::array();
  for (const tessera::Json& one : tessera::parse_json(input, "stdin")) {
    try {
      results.push_back(tessera::run(one));
    } catch (const tessera::Error& error) {
      results.push_back({{"error", error.what()}});
    }
  }
  std::cout << results.dump() << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
