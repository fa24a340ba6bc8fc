// The goldens hold a tiny Z-Image; here are its requests and the comparison with diffusers.
#pragma once

#include <string>

#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::engine {

inline const Model& tiny_z_image() {
  static const Model model = read_model(golden_folder("tiny-z-image"));
  return model;
}

// The requests are those of tools/make_golden_tiny_z_image.py.
inline Request tiny_z_image_request(const std::string& name) {
  static const Json file = read_json(golden_folder("tiny-z-image") / "golden" / "runs.json");
  Json json = file.at("runs").at(name);
  json["seed"] = file.at("seed");
  json["dtype"] = "fp32";
  return read_fields(request_fields(), json);
}

inline void expect_tiny_z_image_golden(const Result& result, const std::string& name,
                                       const std::string& what) {
  static const auto golden = read_golden("tiny-z-image/golden/golden.safetensors");
  const at::Tensor latents = golden.at(name + ".latents"), pixels = golden.at(name + ".pixels");
  ASSERT_EQ(result.latents.sizes(), latents.sizes()) << name << ", " << what;
  EXPECT_LE((result.latents - latents).abs().max().item<double>(), 1e-3) << name << ", " << what;
  ASSERT_EQ(result.images.size(), static_cast<size_t>(pixels.size(0))) << name << ", " << what;
  EXPECT_LE(pixel_difference(pixels_of(result.images), pixels), 2) << name << ", " << what;
}

}  // namespace tessera::engine
