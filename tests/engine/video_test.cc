// Whole runs of Open-Sora against tools/reference/open_sora.py and open_sora_1_1.py, which share no code with
// the engine.
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "core/error.h"
#include "engine/engine.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/strict_device.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::engine {
namespace {

// A run of a golden.
struct GoldenRun {
  const Model& (*model)();
  std::string name;

  std::filesystem::path folder() const { return model().folder / "golden"; }
};

std::string name_of(const GoldenRun& run) {
  return run.model == tiny_video ? run.name : run.name + "_1_1";
}

void PrintTo(const GoldenRun& run, std::ostream* out) {
  *out << name_of(run);
}

Request golden_request(const GoldenRun& golden) {
  const Json all = read_json(golden.folder() / "runs.json");
  const Json& run = all.at("runs").at(golden.name);
  Request request;
  request.prompts = run.at("prompts").get<std::vector<std::string>>();
  request.seed = all.at("seed").get<uint64_t>();
  request.dtype = at::kFloat;
  const auto read = [&](const char* key, auto& member) {
    using Value = typename std::decay_t<decltype(member)>::value_type;
    if (run.contains(key) && !run.at(key).is_null()) member = run.at(key).get<Value>();
  };
  read("height", request.height);
  read("width", request.width);
  read("num_frames", request.video.num_frames);
  read("steps", request.num_inference_steps);
  read("guidance", request.guidance_scale);
  read("fps", request.video.fps);
  read("aesthetic", request.video.aesthetic_score);
  if (run.contains("aesthetic") && run.at("aesthetic").is_null()) request.video.aesthetic_score = 0;
  read("motion", request.video.motion_score);
  read("camera_motion", request.video.camera_motion);
  read("loops", request.video.loop);
  read("condition_frames", request.video.condition_frame_length);
  read("condition_edit", request.video.condition_frame_edit);
  request.num_images_per_prompt = run.value("videos_per_prompt", int64_t{1});
  std::string paths;
  for (const std::string& file : run.value("references", std::vector<std::string>()))
    paths += (paths.empty() ? "" : ";") + (golden.folder() / file).string();
  if (!paths.empty()) request.video.reference_paths = {paths};
  if (run.contains("mask_strategy"))
    request.video.mask_strategies = {run.at("mask_strategy").get<std::string>()};
  return request;
}

struct Videos {
  at::Tensor latents;  // of the last part
  at::Tensor frames;   // [N, F, H, W, 3]
};

Videos generate_videos(const Model& model, const Settings& settings, const parallel::Layout& layout,
                       comm::World world) {
  Engine engine(model, 0, std::move(world));
  std::vector<std::vector<at::Tensor>> frames(static_cast<size_t>(settings.pictures()));
  Observer observer;
  observer.decoded = [&](int64_t video, const at::Tensor& some) {
    frames[static_cast<size_t>(video)].push_back(some.clone());
  };
  const Result result = engine.run(settings, layout, observer);
  if (frames.front().empty()) return {};
  std::vector<at::Tensor> videos;
  videos.reserve(frames.size());
  for (const auto& video : frames) videos.push_back(at::concat(video));
  return {result.latents, at::stack(videos)};
}

void expect_golden(const GoldenRun& golden, const Videos& videos, const Settings& settings) {
  const auto latents = read_golden((golden.folder() / "latents.safetensors").string());
  const auto frames = read_golden((golden.folder() / "frames.safetensors").string());
  const std::string name = name_of(golden),
                    part = fmt::format("{}.{}", golden.name, settings.video.loops - 1);
  EXPECT_LT(relative_error(videos.latents, latents.at(part)), 1e-4) << name;
  const at::Tensor& expected = frames.at(golden.name);
  ASSERT_EQ(videos.frames.sizes(), expected.sizes()) << name;
  const at::Tensor difference = (videos.frames.to(at::kInt) - expected.to(at::kInt)).abs();
  EXPECT_LE(difference.max().item<int>(), 1) << name;
  EXPECT_LT(difference.to(at::kDouble).mean().item<double>(), 1e-3) << name;
}

std::vector<GoldenRun> golden_runs() {
  std::vector<GoldenRun> all;
  for (const char* name : {"unguided", "guided", "two_clips", "image", "edited_image", "kept_image", "video",
                           "loops", "ragged_loops"})
    all.push_back({tiny_video, name});
  for (const char* name : {"unguided", "guided", "image", "references", "loops", "edited_loops"})
    all.push_back({tiny_video_1_1, name});
  return all;
}

class Video : public testing::TestWithParam<GoldenRun> {};

TEST_P(Video, EqualsTheOracle) {
  const c10::InferenceMode inference_mode;
  const Model& model = GetParam().model();
  const Settings settings = resolve(golden_request(GetParam()), model);
  expect_golden(GetParam(), generate_videos(model, settings, {}, {}), settings);
}

// Whole runs keep host and device apart.
TEST_P(Video, EqualsTheOracleOnAStrictDevice) {
  const c10::InferenceMode inference_mode;
  const Model& model = GetParam().model();
  Request request = golden_request(GetParam());
  request.device = strict_device();
  const Settings settings = resolve(request, model);
  expect_golden(GetParam(), generate_videos(model, settings, {}, {}), settings);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Video, testing::ValuesIn(golden_runs()),
                         [](const auto& info) { return name_of(info.param); });

// What a preview shows of frames that are given is how they stand.
TEST(VideoPreviews, ShowGivenFramesAsTheyAre) {
  const Settings settings = resolve(golden_request({tiny_video, "kept_image"}), tiny_video());
  std::vector<Preview> previews;
  Observer observer;
  observer.preview_every = 1;
  observer.previewed = [&](const Preview& preview) { previews.push_back(preview); };
  Engine(tiny_video(), 0).run(settings, {}, observer);
  const at::Tensor stands = previews.front().latents.eq(previews.back().latents);
  EXPECT_TRUE(stands.any().item<bool>());
  for (const Preview& each : previews) {
    EXPECT_TRUE(each.sample.masked_select(stands).equal(each.latents.masked_select(stands)));
    EXPECT_FALSE(each.sample.masked_select(stands.logical_not())
                     .equal(previews.front().latents.masked_select(stands.logical_not())));
  }
}

struct VideoWay {
  std::string name;
  parallel::ParallelOptions options;
  bool needs_guidance = false, needs_two_videos = false;
};

std::vector<VideoWay> video_ways() {
  using parallel::degrees;
  std::vector<VideoWay> all = {{"ulysses", degrees(1, false, 1, 1, 2, 1)},
                               {"ring", degrees(1, false, 1, 3, 1, 1)},
                               {"gather", degrees(1, false, 1, 1, 1, 1, 3)},
                               {"tensor", degrees(1, false, 1, 1, 1, 2)},
                               {"cfg and ulysses", degrees(1, true, 1, 1, 2, 1), true},
                               {"pipefusion", degrees(1, false, 2, 1, 1, 1)},
                               {"data and ulysses", degrees(2, false, 1, 1, 2, 1), false, true}};
  return all;
}

void expect_golden_on_ranks(const GoldenRun& golden, const Settings& settings,
                            parallel::ParallelOptions options, comm::Wire wire) {
  const Model& model = golden.model();
  if (options.pipefusion_parallel_degree > 1) options.warmup_steps = settings.steps;  // exact
  const parallel::Layout layout = parallel::resolve_layout(options, workload(settings, model), std::nullopt);
  comm::run_ranks_as_threads(
      options.degrees(),
      [&](comm::World world) {
        const bool is_first = world.rank() == 0;
        const Videos videos = generate_videos(model, settings, layout, std::move(world));
        EXPECT_EQ(videos.frames.defined(), is_first);
        if (is_first) expect_golden(golden, videos, settings);
      },
      wire);
}

class VideoOnRanks : public testing::TestWithParam<GoldenRun> {};

TEST_P(VideoOnRanks, EqualsTheOracle) {
  const Settings settings = resolve(golden_request(GetParam()), GetParam().model());
  for (const VideoWay& way : video_ways()) {
    if ((way.needs_guidance && !settings.guided()) || (way.needs_two_videos && settings.pictures() < 2))
      continue;
    SCOPED_TRACE(way.name);
    expect_golden_on_ranks(GetParam(), settings, way.options, comm::Wire::kShared);
  }
}

// The negative text, of which only the length is given, on the host, comes first; stages receive on the
// device.
TEST(VideoRanksOnAStrictDevice, EqualTheOracleInAPipeline) {
  const GoldenRun golden{tiny_video, "guided"};
  Request request = golden_request(golden);
  request.device = strict_device();
  expect_golden_on_ranks(golden, resolve(request, golden.model()), parallel::degrees(1, false, 2, 1, 1, 1),
                         comm::Wire::kStrict);
}

INSTANTIATE_TEST_SUITE_P(Goldens, VideoOnRanks, testing::ValuesIn(golden_runs()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace tessera::engine
