#include "samplers/rectified_flow.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::samplers {
namespace {

// Timesteps that the public code of Open-Sora 1.2 gave for 30 steps, in steps 0, 1, 15, 28 and 29.
TEST(RectifiedFlow, MovesTimestepsAsThePublicCode) {
  struct Row {
    double height, width;
    int64_t frames;
    std::array<double, 5> expected;
  };
  for (const Row& row : {Row{240, 426, 51, {1000, 985.944, 707.493, 147.315, 76.983}},
                         Row{360, 640, 204, {1000, 995.274, 878.962, 341.543, 200.261}},
                         Row{720, 1280, 51, {1000, 995.274, 878.962, 341.543, 200.261}},
                         Row{512, 512, 1, {1000, 966.667, 500, 66.667, 33.333}},
                         Row{720, 1280, 408, {1000, 998.324, 953.574, 594.668, 414.610}}}) {
    const RectifiedFlow sampler({.height = row.height, .width = row.width, .num_frames = row.frames});
    ASSERT_EQ(sampler.steps(), 30);
    EXPECT_LE(sampler.timesteps().front(), 1000);
    size_t i = 0;
    for (const size_t step : {0, 1, 15, 28, 29})
      EXPECT_NEAR(sampler.timesteps()[step], row.expected[i++], 6e-4) << row.height << ' ' << step;
  }
}

// A video of 60 frames has three whole clips, as one of 51.
TEST(RectifiedFlow, CountsWholeClips) {
  EXPECT_EQ(RectifiedFlow({.num_frames = 60}).timesteps(), RectifiedFlow({.num_frames = 51}).timesteps());
}

// The public code's shift of their timesteps is not a number.
TEST(RectifiedFlow, RefusesToShiftTimestepsOfPartOfAClip) {
  for (const int64_t frames : {2, 16}) {
    EXPECT_THROW(RectifiedFlow({.num_frames = frames}), Error) << frames;
    EXPECT_NO_THROW(RectifiedFlow({.use_timestep_transform = false, .num_frames = frames})) << frames;
  }
  EXPECT_NO_THROW(RectifiedFlow({.num_frames = 1}));
}

TEST(RectifiedFlow, RoundsDiscreteTimestepsFirst) {
  const RectifiedFlow plain({.steps = 3, .use_discrete_timesteps = true, .use_timestep_transform = false});
  EXPECT_EQ(plain.timesteps(), (std::vector<double>{1000, 667, 333}));
}

// The velocity is the noise's difference to the sample, so one long step and many short ones end in it.
TEST(RectifiedFlow, EndsInTheSampleOfAConstantVelocity) {
  const at::Tensor sample = at::randn({2, 3}), noise = at::randn({2, 3});
  for (const int64_t steps : {1, 7}) {
    const RectifiedFlow sampler({.steps = steps, .num_frames = 51});
    at::Tensor z = sampler.add_noise(sample, noise, 0);
    SamplerState state;
    for (int64_t i = 0; i < steps; ++i) {
      EXPECT_TRUE(at::allclose(z, sampler.add_noise(sample, noise, i), 1e-5, 1e-5));
      z = sampler.step(sample - noise, i, z, state, {});
    }
    EXPECT_TRUE(at::allclose(z, sample, 1e-5, 1e-5));
  }
}

}  // namespace
}  // namespace tessera::samplers
