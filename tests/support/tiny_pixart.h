// The tiny model of the goldens, requests for it, and layouts of ranks.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"

namespace tessera::engine {

inline constexpr uint64_t kNoLimit = uint64_t{1} << 40;

inline const Model& tiny() {
  static const Model model = read_model(golden_folder("tiny-pixart"));
  return model;
}

inline Request tiny_request(int64_t height, int64_t width, uint64_t seed,
                            std::vector<std::string> prompts = {"a cat"}) {
  Request request;
  request.prompts = std::move(prompts);
  request.height = height;
  request.width = width;
  request.resolution_binning = false;
  request.num_inference_steps = 4;
  request.seed = seed;
  request.dtype = at::kFloat;
  return request;
}

inline Settings tiny_settings(uint64_t seed) {
  return resolve(tiny_request(16, 32, seed), tiny());
}

// Returns whether the results have the same bits.
inline bool equal(const Result& a, const Result& b) {
  if (!a.latents.equal(b.latents) || a.images.size() != b.images.size()) return false;
  for (size_t i = 0; i < a.images.size(); ++i) {
    if (a.images[i].pixels != b.images[i].pixels) return false;
  }
  return true;
}

struct Way {
  std::string name;
  parallel::ParallelOptions options;

  parallel::Layout layout(const Settings& settings) const {
    return parallel::resolve_layout(options, workload(settings, tiny()), std::nullopt);
  }
};

inline std::vector<Way> ways() {
  using parallel::degrees;
  std::vector<Way> all = {{"alone", {}},
                          {"cfg and ulysses", degrees(1, true, 1, 1, 2, 1)},
                          {"pipefusion", degrees(1, false, 2, 1, 1, 1)},
                          {"data and tensor", degrees(2, false, 1, 1, 1, 2)},
                          {"data and pipefusion", degrees(2, false, 2, 1, 1, 1)}};
  all[2].options.num_pipeline_patch = 2;
  all.push_back({"displaced", {}});
  all[5].options.displaced_patch_degree = 2;
  all[5].options.warmup_steps = 0;
  return all;
}

}  // namespace tessera::engine
