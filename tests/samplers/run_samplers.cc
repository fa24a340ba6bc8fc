// run_samplers reads a JSON array of cases from stdin. As a JSON array it writes, for each, the timesteps,
// the scale of the noise and the latents after every step, or the sampler's error. A case has a config, a
// scheduler, another one that takes its place or null, options of a request as texts, steps, tokens, eta, a
// seed and a shape; noise is drawn as in a run, and the model is smooth_model(). With --options it prints
// the options of each class and their types instead. tools/parity/samplers.py uses it.
#include <array>
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
      samplers::make_sampler(config, other,
                             {one.at("steps"), one.at("tokens"), one.at("eta"), false,
                              samplers::parse_options(one.at("options").get<std::vector<std::string>>())});
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

// {"EulerDiscreteScheduler": {"beta_start": "number", ...}, ...}
Json options_by_class() {
  static const std::array<const char*, 7> types = {"flag",     "integer", "number", "text",
                                                   "integers", "numbers", "python"};
  Json classes = Json::object();
  for (const samplers::SamplerName& known : samplers::known_samplers()) {
    Json& options = classes[known.class_name] = Json::object();
    for (const auto& [name, type] : samplers::all_options()) {
      if (samplers::has_option(known.class_name, name)) options[name] = types.at(static_cast<size_t>(type));
    }
  }
  return classes;
}

}  // namespace
}  // namespace tessera

int main(int count, char** words) try {
  if (count == 2 && std::string_view(words[1]) == "--options") {
    std::cout << tessera::options_by_class().dump() << '\n';
    return 0;
  }
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
