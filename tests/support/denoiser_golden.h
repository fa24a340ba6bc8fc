// Compares a denoiser with the outputs of diffusers' model in fp32 and in bf16, for the weights and inputs of
// tests/golden/NAME.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <string>

#include "tests/support/golden.h"

namespace tessera {

class DenoiserGolden : public ::testing::TestWithParam<const char*> {
 protected:
  // Returns the prediction for the golden's latents and prompts.
  virtual at::Tensor run(at::ScalarType dtype, double timestep) = 0;

  void expect_diffusers_output_in_fp32() {
    for (const double timestep : kTimesteps) {
      const at::Tensor out = run(at::kFloat, timestep);
      EXPECT_EQ(out.scalar_type(), at::kFloat);
      EXPECT_LE(relative_error(out, golden_.at(fmt::format("output.{}", timestep))), kComponentTolerance)
          << timestep;
    }
  }
  void expect_to_be_as_near_the_truth_in_bf16() {
    double own = 0, theirs = 0;  // sums over the timesteps, because a maximum over few elements is noisy
    for (const double timestep : kTimesteps) {
      const at::Tensor truth = golden_.at(fmt::format("output.{}", timestep));
      own += (run(at::kBFloat16, timestep) - truth).square().sum().item<double>();
      theirs += (golden_.at(fmt::format("output.{}.bf16", timestep)) - truth).square().sum().item<double>();
    }
    EXPECT_LE(std::sqrt(own), 1.1 * std::sqrt(theirs));
  }

  std::map<std::string, at::Tensor> golden_ =
      read_golden(std::string(GetParam()) + "/golden/golden.safetensors");

 private:
  static constexpr std::array kTimesteps = {999.0, 0.0, 417.5};
};

}  // namespace tessera
