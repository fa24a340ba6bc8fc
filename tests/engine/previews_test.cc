// Tests that previews equal the results of runs of fewer steps, on one rank and on several.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::engine {
namespace {

struct Shown {
  std::vector<Preview> previews;
  Result result;
};

Shown generate(const Way& way, int64_t every, bool images) {
  Request request = tiny_request(48, 32, 3, {"a cat", "a dog"});
  request.num_inference_steps = 5;
  const Settings settings = resolve(request, tiny());
  Shown shown;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        Observer observer;
        if (world.rank() == 0) {
          observer.preview_every = every;
          observer.preview_images = images;
          observer.previewed = [&](const Preview& preview) { shown.previews.push_back(preview); };
        }
        Result result = engine.run(settings, way.layout(settings), observer);
        if (world.rank() == 0) shown.result = std::move(result);
      },
      comm::Wire::kShared);
  return shown;
}

class Previews : public ::testing::TestWithParam<size_t> {};

TEST_P(Previews, AreShownOnTheFirstRankWithoutChangingTheResult) {
  const Way way = ways()[GetParam()];
  const Shown none = generate(way, 0, false), all = generate(way, 1, false), some = generate(way, 2, true);
  EXPECT_TRUE(none.previews.empty());
  EXPECT_TRUE(equal(all.result, none.result) && equal(some.result, none.result)) << way.name;
  ASSERT_EQ(all.previews.size(), 5U);
  EXPECT_TRUE(all.previews[4].latents.equal(all.result.latents));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all.previews[i].step, static_cast<int64_t>(i));
    EXPECT_TRUE(all.previews[i].images.empty());
    EXPECT_EQ(all.previews[i].latents.sizes(), all.result.latents.sizes());
    EXPECT_EQ(all.previews[i].sample.sizes(), all.result.latents.sizes());
  }
  // The last step of this sampler ends in the sample that it predicts.
  EXPECT_LE(relative_error(all.previews[4].sample, all.result.latents), 1e-5) << way.name;
  for (size_t i = 1; i < 5; ++i) EXPECT_LT(all.previews[i].timestep, all.previews[i - 1].timestep);
  ASSERT_EQ(some.previews.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(some.previews[i].step, static_cast<int64_t>(2 * i + 1));
    EXPECT_TRUE(some.previews[i].latents.equal(all.previews[2 * i + 1].latents)) << way.name;
    ASSERT_EQ(some.previews[i].images.size(), 2U);
    EXPECT_EQ(some.previews[i].images[0].height, 48);
    EXPECT_EQ(some.previews[i].images[0].width, 32);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Previews, ::testing::Range<size_t>(0, ways().size()));

// The latents of every step equal those of one rank, so no preview is a step late or early.
TEST(Preview, OfExactMethodsIsThatOfOneRank) {
  const Shown alone = generate(ways()[0], 1, false);
  for (const size_t exact : {size_t{1}, size_t{3}}) {
    const Shown shown = generate(ways()[exact], 1, false);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_LE(relative_error(shown.previews[i].latents, alone.previews[i].latents), 1e-4) << i;
      EXPECT_LE(relative_error(shown.previews[i].sample, alone.previews[i].sample), 1e-4) << i;
    }
  }
}

TEST(Preview, HasTheSizeThatWasAskedFor) {
  Request request = tiny_request(72, 104, 3);
  request.resolution_binning = true;
  request.num_inference_steps = 2;
  const Settings settings = resolve(request, tiny());
  ASSERT_NE(settings.model_height, settings.height);
  ASSERT_NE(settings.model_width, settings.width);
  std::vector<Image> shown;
  Observer observer;
  observer.preview_every = 1;
  observer.preview_images = true;
  observer.previewed = [&](const Preview& preview) { shown = preview.images; };
  generate(settings, tiny(), observer);
  ASSERT_EQ(shown.size(), 1U);
  EXPECT_EQ(shown[0].height, 72);
  EXPECT_EQ(shown[0].width, 104);
}

std::atomic<int> decoders_loaded = 0;

// Returns the tiny model, which counts how often its decoder is loaded.
Model counting() {
  static const models::Family family = [] {
    models::Family with_counter = *tiny().family;
    with_counter.load_decoder = [](const std::filesystem::path& folder, const models::LoadOptions& options,
                                   models::LoadStatistics& cost) {
      if (!options.placement.device.is_meta()) ++decoders_loaded;
      return tiny().family->load_decoder(folder, options, cost);
    };
    return with_counter;
  }();
  Model model = tiny();
  model.family = &family;
  return model;
}

// If no component stays, all previews and the final pictures share one decoder, which is freed after the run.
TEST(Preview, ReadsTheDecoderOnceARunOfRanks) {
  Engine engine(counting(), 0);
  Observer observer;
  int shown = 0;
  observer.preview_every = 1;
  observer.preview_images = true;
  observer.previewed = [&](const Preview& preview) { shown += static_cast<int>(preview.images.size()); };
  for (const int runs : {1, 2}) {
    const Result result = engine.run(tiny_settings(1), {}, observer);
    EXPECT_EQ(shown, 4 * runs);
    EXPECT_EQ(decoders_loaded, runs);
    EXPECT_TRUE(equal(result, generate(tiny_settings(1), tiny())));
    EXPECT_EQ(result.bytes_read, generate(tiny_settings(1), tiny()).bytes_read);
  }
}

// Of a video of one frame, of one clip of the decoder, and of two.
TEST(Preview, ShowsAFrameOfEachVideo) {
  for (const int64_t frames : {1, 17, 34}) {
    Request request;
    request.prompts = {"a", "b"};
    request.seed = 1;
    request.height = 16;
    request.width = 32;
    request.video.num_frames = frames;
    request.num_inference_steps = 2;
    request.dtype = at::kFloat;
    std::vector<Image> shown;
    Observer observer;
    observer.preview_every = 1;
    observer.preview_images = true;
    observer.previewed = [&](const Preview& preview) { shown = preview.images; };
    generate(resolve(request, tiny_video()), tiny_video(), observer);
    ASSERT_EQ(shown.size(), 2U) << frames;
    EXPECT_EQ(shown[0].height, 16) << frames;
    EXPECT_EQ(shown[1].width, 32) << frames;
  }
}

}  // namespace
}  // namespace tessera::engine
