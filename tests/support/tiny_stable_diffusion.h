// The goldens hold a tiny Stable Diffusion 1.x; here are its requests and the comparison with diffusers.
#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/support/golden.h"

namespace tessera::engine {

inline std::filesystem::path tiny_sd_folder() {
  return golden_folder("tiny-sd");
}

inline const Model& tiny_sd() {
  static const Model model = read_model(tiny_sd_folder());
  return model;
}

// The requests are those of tools/make_golden_tiny_sd.py.
inline Request tiny_sd_request(const std::string& name) {
  static const Json file = read_json(tiny_sd_folder() / "golden" / "runs.json");
  Json json = file.at("runs").at(name);
  json["seed"] = file.at("seed");
  json["dtype"] = "fp32";
  return read_fields(request_fields(), json);
}

// [N, H, W, 3], signed so that differences can be taken.
inline at::Tensor pixels_of(const std::vector<Image>& images) {
  std::vector<at::Tensor> all;
  all.reserve(images.size());
  for (const Image& image : images)
    all.push_back(at::tensor(at::ArrayRef<uint8_t>(image.pixels), at::kByte)
                      .to(at::kInt)
                      .view({image.height, image.width, 3}));
  return at::stack(all);
}

inline int64_t pixel_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int64_t>();
}

inline void expect_tiny_sd_golden(const Result& result, const std::string& name, const std::string& what) {
  static const auto golden = read_golden("tiny-sd/golden/golden.safetensors");
  const at::Tensor latents = golden.at(name + ".latents"), pixels = golden.at(name + ".pixels");
  ASSERT_EQ(result.latents.sizes(), latents.sizes()) << name << ", " << what;
  EXPECT_LE((result.latents - latents).abs().max().item<double>(), 1e-3) << name << ", " << what;
  ASSERT_EQ(result.images.size(), static_cast<size_t>(pixels.size(0))) << name << ", " << what;
  EXPECT_LE(pixel_difference(pixels_of(result.images), pixels), 2) << name << ", " << what;
}

}  // namespace tessera::engine
