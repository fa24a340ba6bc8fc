// Tests that ranks of unequal shares give, with every method and whole pipelines of every family, what one
// rank gives: texts, latents and pixels.
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "core/error.h"
#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_open_sora.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::engine {
namespace {

using parallel::degrees;

struct Subject {
  std::string name;
  const Model& (*model)();
  Request (*request)();
  int64_t refusals;  // of the layouts below: those that its heads, blocks and rows do not allow
};

void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.name;
}

const Model& tiny_sdxl() {
  static const Model model = read_model(golden_folder("tiny-sdxl"));
  return model;
}

// Three pictures of 20 x 12 latents.
Request image_request() {
  Request request = tiny_request(160, 96, 1, {"a cat", "two red squares on a green triangle", "a house"});
  request.num_inference_steps = 3;
  return request;
}

Request xl_request() {
  Request request = image_request();
  request.resolution_binning = std::nullopt;
  return request;
}

// Three videos of several clips.
Request video_request() {
  Request request;
  request.prompts = {"a cat"};
  request.num_images_per_prompt = 3;
  request.height = 48;
  request.width = 40;
  request.video.num_frames = 40;
  request.num_inference_steps = 2;
  request.seed = 1;
  request.dtype = at::kFloat;
  return request;
}

parallel::ParallelOptions with_shares(std::vector<double> shares, parallel::ParallelOptions options) {
  options.rank_shares = std::move(shares);
  return options;
}

parallel::ParallelOptions displaced(int64_t degree) {
  parallel::ParallelOptions options;
  options.displaced_patch_degree = degree;
  options.displaced_mode = parallel::DisplacedMode::kFullSync;
  return options;
}

// All steps are warm-up steps, which are exact.
parallel::ParallelOptions pipefusion(bool cfg, int64_t stages, int64_t ulysses, int64_t steps) {
  parallel::ParallelOptions options = degrees(1, cfg, stages, 1, ulysses, 1);
  options.num_pipeline_patch = 2;
  options.warmup_steps = steps;
  return options;
}

parallel::ParallelOptions square(parallel::ParallelOptions options) {
  options.split_scheme = parallel::SplitScheme::k2d;
  return options;
}

// Layouts of two, three and four ranks.
std::vector<parallel::ParallelOptions> layouts(int64_t ranks, int64_t steps) {
  if (ranks == 2)
    return {with_shares({3, 2}, degrees(1, false, 1, 1, 2, 1)),
            with_shares({1, 5}, degrees(1, false, 1, 1, 2, 1)),
            with_shares({1, 5}, degrees(1, false, 1, 2, 1, 1)),
            with_shares({3, 2}, degrees(1, false, 1, 1, 1, 2)),
            with_shares({1, 5}, degrees(1, true, 1, 1, 1, 1)),
            with_shares({1, 5}, degrees(2, false, 1, 1, 1, 1)),
            with_shares({3, 1}, displaced(2)),
            with_shares({1, 5}, pipefusion(false, 2, 1, steps))};
  if (ranks == 3)
    return {with_shares({2.5, 1, 1}, degrees(1, false, 1, 3, 1, 1)),
            with_shares({1, 1, 2.5}, degrees(3, false, 1, 1, 1, 1)),
            with_shares({2.5, 1, 1}, degrees(1, false, 1, 1, 1, 1, 3)),
            with_shares({1, 2.5, 1}, displaced(3))};
  return {with_shares({1, 1, 1, 7}, degrees(1, true, 1, 1, 2, 1)),
          with_shares({1, 2, 3, 4}, degrees(1, true, 1, 2, 1, 1)),
          with_shares({1, 1, 1, 7}, degrees(1, false, 1, 2, 2, 1)),
          with_shares({1, 1, 1, 7}, degrees(1, false, 1, 1, 2, 1, 2)),
          with_shares({7, 1, 1, 1}, degrees(2, false, 1, 1, 2, 1)),
          with_shares({1, 2, 1, 2}, degrees(2, false, 1, 1, 1, 2)),
          with_shares({4, 3, 2, 1}, degrees(1, false, 1, 2, 1, 2)),
          with_shares({1, 1, 1, 7}, square(degrees(1, false, 1, 1, 1, 4))),
          with_shares({1, 1, 1, 7}, pipefusion(true, 2, 1, steps)),
          with_shares({1, 1, 1, 7}, pipefusion(false, 2, 2, steps))};
}

struct Made {
  at::Tensor latents, pixels;
};

Made run(Engine& engine, const Settings& settings, const parallel::Layout& layout) {
  std::vector<at::Tensor> frames;
  Observer observer;
  observer.decoded = [&](int64_t, const at::Tensor& some) { frames.push_back(some.to(at::kInt)); };
  const Result result = engine.run(settings, layout, observer);
  Made made{result.latents, {}};
  if (!frames.empty()) made.pixels = at::concat(frames);
  if (!result.images.empty()) made.pixels = pixels_of(result.images);
  return made;
}

class Unequal : public ::testing::TestWithParam<Subject> {};

TEST_P(Unequal, RanksGiveWhatOneRankGives) {
  const Model& model = GetParam().model();
  const Settings settings = resolve(GetParam().request(), model);
  Engine alone(model, 0);
  const Made expected = run(alone, settings, {});
  int64_t refusals = 0;
  for (const int64_t ranks : {2, 3, 4}) {
    std::vector<parallel::Layout> made;
    for (const parallel::ParallelOptions& options : layouts(ranks, settings.steps)) {
      try {
        made.push_back(parallel::resolve_layout(options, workload(settings, model), ranks));
      } catch (const Error&) {
        ++refusals;
      }
    }
    comm::run_ranks_as_threads(
        ranks,
        [&](const comm::World& world) {
          Engine engine(model, kNoLimit, world);  // keeps what equal shares would share
          for (size_t i = 0; i < made.size(); ++i) {
            const Made own = run(engine, settings, made[i]);
            if (world.rank() > 0) continue;
            SCOPED_TRACE(fmt::format("layout {} of {} ranks", i, ranks));
            EXPECT_LE(relative_error(own.latents, expected.latents), 1e-4);
            ASSERT_EQ(own.pixels.sizes(), expected.pixels.sizes());
            EXPECT_LE(pixel_difference(own.pixels, expected.pixels), 1);
          }
        },
        comm::Wire::kShared);
  }
  EXPECT_EQ(refusals, GetParam().refusals);
}

INSTANTIATE_TEST_SUITE_P(Families, Unequal,
                         ::testing::Values(Subject{"PixArt", tiny, image_request, 1},
                                           Subject{"StableDiffusion", tiny_sd, xl_request, 4},
                                           Subject{"StableDiffusionXL", tiny_sdxl, xl_request, 4},
                                           Subject{"OpenSora", tiny_video, video_request, 0},
                                           Subject{"OpenSora1_1", tiny_video_1_1, video_request, 0}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::engine
