// The goldens hold a tiny Stable Diffusion 1.x; here are its requests and the comparison with diffusers.
#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/tiny_pipeline.h"

namespace tessera::engine {

inline std::filesystem::path tiny_sd_folder() {
  return golden_folder("tiny-sd");
}

inline const TinyPipeline& tiny_sd_pipeline() {
  static const TinyPipeline pipeline("tiny-sd");
  return pipeline;
}

inline const Model& tiny_sd() {
  return tiny_sd_pipeline().model();
}

inline Request tiny_sd_request(const std::string& name) {
  return tiny_sd_pipeline().request(name);
}

inline void expect_tiny_sd_golden(const Result& result, const std::string& name, const std::string& what) {
  tiny_sd_pipeline().expect_golden(result, name, what);
}

}  // namespace tessera::engine
