// Whole runs of Open-Sora against tools/open_sora.py, which shares no code with the engine.
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "core/error.h"
#include "engine/engine.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_open_sora.h"

namespace tessera::engine {
namespace {

const std::filesystem::path& folder() {
  static const std::filesystem::path path = golden_folder("tiny-open-sora");
  return path;
}

const Json& golden_runs() {
  static const Json runs = read_json(folder() / "golden" / "runs.json");
  return runs;
}

Request golden_request(const std::string& name) {
  const Json& run = golden_runs().at("runs").at(name);
  Request request;
  request.prompts = run.at("prompts").get<std::vector<std::string>>();
  request.seed = golden_runs().at("seed").get<uint64_t>();
  request.dtype = at::kFloat;
  const auto read = [&](const char* key, auto& member) {
    using Value = typename std::decay_t<decltype(member)>::value_type;
    if (run.contains(key) && !run.at(key).is_null()) member = run.at(key).get<Value>();
  };
  read("height", request.height);
  read("width", request.width);
  read("num_frames", request.num_frames);
  read("steps", request.num_inference_steps);
  read("guidance", request.guidance_scale);
  read("fps", request.fps);
  read("aesthetic", request.aesthetic_score);
  if (run.contains("aesthetic") && run.at("aesthetic").is_null()) request.aesthetic_score = 0;
  read("motion", request.motion_score);
  read("camera_motion", request.camera_motion);
  read("loops", request.loop);
  read("condition_edit", request.condition_frame_edit);
  request.num_images_per_prompt = run.value("videos_per_prompt", int64_t{1});
  std::string paths;
  for (const std::string& file : run.value("references", std::vector<std::string>()))
    paths += (paths.empty() ? "" : ";") + (folder() / "golden" / file).string();
  if (!paths.empty()) request.reference_paths = {paths};
  if (run.contains("mask_strategy")) request.mask_strategies = {run.at("mask_strategy").get<std::string>()};
  return request;
}

struct Videos {
  at::Tensor latents;  // of the last part
  at::Tensor frames;   // [N, F, H, W, 3]
};

Videos generate_videos(const Settings& settings, const parallel::Layout& layout, comm::World world) {
  Engine engine(tiny_video(), 0, std::move(world));
  std::vector<std::vector<at::Tensor>> frames(static_cast<size_t>(settings.pictures()));
  Observer observer;
  observer.decoded = [&](int64_t video, const at::Tensor& some) {
    frames[static_cast<size_t>(video)].push_back(some.clone());
  };
  const Result result = engine.run(settings, layout, observer);
  if (frames.front().empty()) return {};
  std::vector<at::Tensor> videos;
  videos.reserve(frames.size());
  for (const auto& video : frames) videos.push_back(at::cat(video));
  return {result.latents, at::stack(videos)};
}

void expect_golden(const std::string& name, const Videos& videos, const Settings& settings) {
  static const auto latents = read_golden((folder() / "golden" / "latents.safetensors").string());
  static const auto frames = read_golden((folder() / "golden" / "frames.safetensors").string());
  const std::string part = fmt::format("{}.{}", name, settings.loops - 1);
  EXPECT_LT(relative_error(videos.latents, latents.at(part)), 1e-4) << name;
  const at::Tensor& expected = frames.at(name);
  ASSERT_EQ(videos.frames.sizes(), expected.sizes()) << name;
  const at::Tensor difference = (videos.frames.to(at::kInt) - expected.to(at::kInt)).abs();
  EXPECT_LE(difference.max().item<int>(), 1) << name;
  EXPECT_LT(difference.to(at::kDouble).mean().item<double>(), 1e-3) << name;
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = {"unguided", "guided",       "two_clips",
                                               "image",    "edited_image", "kept_image",
                                               "video",    "loops",        "ragged_loops"};
  return all;
}

class Video : public testing::TestWithParam<std::string> {};

TEST_P(Video, EqualsTheOracle) {
  const c10::InferenceMode inference_mode;
  const Settings settings = resolve(golden_request(GetParam()), tiny_video());
  expect_golden(GetParam(), generate_videos(settings, {}, {}), settings);
}

INSTANTIATE_TEST_SUITE_P(Goldens, Video, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

struct Way {
  std::string name;
  parallel::ParallelOptions options;
  bool needs_guidance = false, needs_two_videos = false;
};

std::vector<Way> ways() {
  using parallel::degrees;
  std::vector<Way> all = {{"ulysses", degrees(1, false, 1, 1, 2, 1)},
                          {"ring", degrees(1, false, 1, 3, 1, 1)},
                          {"tensor", degrees(1, false, 1, 1, 1, 2)},
                          {"cfg and ulysses", degrees(1, true, 1, 1, 2, 1), true},
                          {"pipefusion", degrees(1, false, 2, 1, 1, 1)},
                          {"data and ulysses", degrees(2, false, 1, 1, 2, 1), false, true}};
  return all;
}

class VideoOnRanks : public testing::TestWithParam<std::string> {};

TEST_P(VideoOnRanks, EqualsTheOracle) {
  const Settings settings = resolve(golden_request(GetParam()), tiny_video());
  for (const Way& way : ways()) {
    if ((way.needs_guidance && !settings.guided()) || (way.needs_two_videos && settings.pictures() < 2))
      continue;
    SCOPED_TRACE(way.name);
    parallel::ParallelOptions options = way.options;
    if (way.name == "pipefusion") options.warmup_steps = settings.steps;  // exact
    const parallel::Layout layout =
        parallel::resolve_layout(options, workload(settings, tiny_video()), std::nullopt);
    comm::run_ranks_as_threads(
        options.degrees(),
        [&](comm::World world) {
          const bool is_first = world.rank() == 0;
          const Videos videos = generate_videos(settings, layout, std::move(world));
          EXPECT_EQ(videos.frames.defined(), is_first);
          if (is_first) expect_golden(GetParam(), videos, settings);
        },
        comm::Wire::kShared);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, VideoOnRanks, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::engine
