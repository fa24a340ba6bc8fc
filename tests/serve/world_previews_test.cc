// Tests of previews in a world: who sees them, when, and that they change nothing.
#include <gtest/gtest.h>

#include <map>

#include "tests/serve/world_fixture.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::serve {
namespace {

using Kind = WorldOrder::Kind;
using What = WorldEvent::Kind;

WorldOrder watch_order(int64_t run, int64_t every) {
  WorldOrder order = plain_order(Kind::kWatch, run);
  order.preview_every = every;
  return order;
}

WorldOrder begin_watched(int64_t run, const std::vector<engine::Request>& requests, int64_t every) {
  WorldOrder order = begin_order(run, requests);
  order.preview_every = every;
  return order;
}

// The steps after which a picture of a run was shown.
std::vector<int64_t> shown(const Script& script, int64_t run, int64_t picture = 0) {
  std::vector<int64_t> steps;
  for (const WorldEvent& event : script.events) {
    if (event.kind == What::kPreview && event.run == run && event.index == picture)
      steps.push_back(event.step);
  }
  return steps;
}

using Steps = std::vector<int64_t>;

class WatchedWorldOfRanks : public ::testing::TestWithParam<size_t> {
 protected:
  static WorldCase of_case() {
    std::vector<WorldCase> cases = world_cases();
    cases.push_back({"pipefusion", parallel::degrees(1, false, 2, 1, 1, 1)});
    return cases[GetParam()];
  }
};

TEST_P(WatchedWorldOfRanks, ShowsWhatIsWatchedAndGivesTheSamePictures) {
  const std::vector<WorldOrder> begin = {begin_order(1, {request_of(1), request_of(2)}),
                                         begin_order(2, {request_of(3)}),
                                         begin_watched(3, {request_of(4)}, 2)};
  const Script unseen =
      run_script(of_case(), {{0, {begin[0], begin[1]}}, {2, {begin_order(3, {request_of(4)})}}});
  EXPECT_EQ(shown(unseen, 1), Steps());
  // One run is watched from its second step to its third, by turns with others; the turn of an order takes a
  // step.
  const Script seen = run_script(
      of_case(), {{0, {begin[0], begin[1]}}, {2, {watch_order(1, 1), begin[2]}}, {4, {watch_order(1, 0)}}});
  EXPECT_EQ(shown(seen, 1, 0), (Steps{2, 3}));
  EXPECT_EQ(shown(seen, 1, 1), (Steps{2, 3}));
  EXPECT_EQ(shown(seen, 2), Steps());
  EXPECT_EQ(shown(seen, 3), (Steps{2, 4}));
  EXPECT_EQ(seen.pictures, unseen.pictures);
  EXPECT_EQ(seen.failures, (std::map<int64_t, std::string>()));
}

INSTANTIATE_TEST_SUITE_P(Cases, WatchedWorldOfRanks, ::testing::Range<size_t>(0, 4));

TEST(WatchedWorldOfOneRank, ShowsPreviewsNoOftenerThanItMay) {
  const Script script = run_script(world_cases()[0], {{0, {begin_watched(1, {request_of(1)}, 1)}}},
                                   {.between_previews = std::chrono::hours(1)});
  EXPECT_EQ(shown(script, 1), (Steps{1}));
}

TEST(WatchedWorldOfOneRank, TakesTheLastOfTheOrdersOfATurn) {
  const Script script =
      run_script(world_cases()[0],
                 {{0, {begin_order(1, {request_of(1)}), watch_order(1, 3)}}, {1, {watch_order(99, 1)}}});
  EXPECT_EQ(shown(script, 1), (Steps{3}));
}

TEST(WatchedWorldOfOneRank, ShowsSmallPictures) {
  engine::Request request = request_of(1);
  request.height = 16;
  request.width = 2080;
  const Script script = run_script(world_cases()[0], {{0, {begin_watched(1, {request}, 5)}}});
  ASSERT_EQ(shown(script, 1), (Steps{5}));
  for (const WorldEvent& event : script.events) {
    if (event.kind != What::kPreview) continue;
    EXPECT_EQ(event.image.height, 2);
    EXPECT_EQ(event.image.width, 256);
    EXPECT_EQ(event.image.pixels.size(), 2U * 256 * 3);
  }
}

engine::Request video_of(uint64_t seed) {
  engine::Request request;
  request.prompts = {"a", "b"};
  request.seed = seed;
  request.height = 16;
  request.width = 32;
  request.video.num_frames = 34;  // two clips
  request.video.fps = 12;
  request.num_inference_steps = 2;
  request.dtype = at::kFloat;
  return request;
}

class VideosOfWorldOfRanks : public ::testing::TestWithParam<size_t> {};

TEST_P(VideosOfWorldOfRanks, GiveTheFramesOfALoneRun) {
  const WorldCase of = world_cases()[GetParam()];
  std::map<int64_t, std::string> expected;
  engine::Settings settings;
  comm::run_ranks_as_threads(
      of.options.degrees(),
      [&](const comm::World& world) {
        engine::Engine engine(engine::tiny_video(), engine::kNoLimit, world);
        const engine::Settings own = engine::resolve(video_of(1), engine.model());
        engine::Observer observer;
        observer.decoded = [&](int64_t video, const at::Tensor& frames) {
          const at::Tensor all = frames.contiguous();
          expected[video].append(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()), all.nbytes());
        };
        engine.run(own,
                   parallel::resolve_layout(of.options, engine::workload(own, engine.model()), world.size()),
                   observer);
        if (world.rank() == 0) settings = own;
      },
      comm::Wire::kShared);
  const Script script =
      run_script(of, {{0, {begin_watched(1, {video_of(1)}, 1)}}}, {.model = &engine::tiny_video()});
  EXPECT_EQ(script.failures, (std::map<int64_t, std::string>()));
  ASSERT_EQ(script.videos.size(), 1U);
  ASSERT_EQ(script.videos.at(1).size(), 2U);
  for (const auto& [video, pieces] : script.videos.at(1)) {
    std::string pixels;
    int64_t next = 0;
    for (const VideoFrames& frames : pieces) {
      EXPECT_EQ(frames.first, next);
      EXPECT_EQ(frames.total, 34);
      EXPECT_EQ(frames.height, 16);
      EXPECT_EQ(frames.width, 32);
      EXPECT_EQ(frames.fps, settings.video.shown_fps);
      EXPECT_EQ(frames.pixels.size(), static_cast<size_t>(frames.count * 16 * 32 * 3));
      next += frames.count;
      pixels += frames.pixels;
    }
    EXPECT_EQ(next, 34);
    EXPECT_EQ(pixels, expected.at(video)) << video;
    EXPECT_EQ(shown(script, 1, video), (Steps{1, 2}));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, VideosOfWorldOfRanks, ::testing::Range<size_t>(0, 3));

}  // namespace
}  // namespace tessera::serve
