// These tests run several requests in one batch on several ranks, and change the layout of an engine from
// request to request.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/support/generate.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_pixart.h"
#include "tests/support/tiny_stable_diffusion.h"

namespace tessera::engine {
namespace {

// Three requests ask for five pictures. Each has its seed, prompts and guidance scale; the last is not
// guided.
std::vector<Settings> five_pictures() {
  std::vector<Settings> batch;
  batch.push_back(resolve(tiny_request(48, 32, 5, {"a cat", "a red circle above a blue square"}), tiny()));
  Request request = tiny_request(48, 32, 6, {"a dog"});
  request.negative_prompts = {"blurry"};
  request.guidance_scale = 3.0;
  request.num_images_per_prompt = 2;
  batch.push_back(resolve(request, tiny()));
  request = tiny_request(48, 32, 7, {"a house"});
  request.guidance_scale = 1.0;
  batch.push_back(resolve(request, tiny()));
  return batch;
}

parallel::Layout layout_of(const parallel::ParallelOptions& options, std::span<const Settings> batch) {
  return parallel::resolve_layout(options, workload(batch, tiny()), std::nullopt);
}

// The references run the requests one after another: on one rank with the same schedule, or on the same ranks
// with displaced patches, whose schedule needs them.
std::vector<Result> expected_of(const std::vector<Settings>& batch, const parallel::Layout& layout,
                                Engine& of_ranks) {
  std::vector<Result> results;
  if (layout.displacement) {
    for (const Settings& settings : batch) results.push_back(of_ranks.run(settings, layout));
    return results;
  }
  parallel::Layout alone;
  alone.patches = layout.patches;
  alone.warmup_steps = layout.warmup_steps;
  Engine engine(tiny(), kNoLimit);
  for (const Settings& settings : batch) results.push_back(engine.run(settings, alone));
  return results;
}

void expect_near(const Result& got, const Result& expected, const std::string& what) {
  ASSERT_EQ(got.latents.sizes(), expected.latents.sizes()) << what;
  EXPECT_LE(relative_error(got.latents, expected.latents), 1e-4) << what;
  ASSERT_EQ(got.images.size(), expected.images.size()) << what;
  EXPECT_LE(pixel_difference(pixels_of(got.images), pixels_of(expected.images)), 1) << what;
}

class Batches : public ::testing::TestWithParam<size_t> {};

TEST_P(Batches, OnRanksAreWhatEachRequestIsAlone) {
  const Way way = ways()[GetParam()];
  const std::vector<Settings> batch = five_pictures();
  const parallel::Layout layout = layout_of(way.options, batch);
  std::vector<Result> together, expected;
  comm::run_ranks_as_threads(
      way.options.degrees(),
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        std::vector<Result> results = engine.run(batch, layout);
        std::vector<Result> alone;
        if (layout.displacement || world.rank() == 0) alone = expected_of(batch, layout, engine);
        if (world.rank() != 0) return;
        together = std::move(results);
        expected = std::move(alone);
      },
      comm::Wire::kShared);
  ASSERT_EQ(together.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i)
    expect_near(together[i], expected[i], fmt::format("{}, request {}", way.name, i));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Batches, ::testing::Range<size_t>(0, ways().size()));

// CFG parallelism needs one request that is guided, and data parallelism counts the pictures of all requests.
TEST(Batch, IsLaidOutByAllOfItsRequests) {
  const std::vector<Settings> batch = five_pictures();
  EXPECT_NO_THROW(layout_of(parallel::degrees(1, true, 1, 1, 1, 1), batch));
  EXPECT_NO_THROW(layout_of(parallel::degrees(5, false, 1, 1, 1, 1), batch));
  EXPECT_THROW(layout_of(parallel::degrees(6, false, 1, 1, 1, 1), batch), Error);
  EXPECT_THROW(layout_of(parallel::degrees(1, true, 1, 1, 1, 1), std::span(batch).subspan(2)), Error);
}

// A run has one of each of these, so requests that differ in them cannot share it.
TEST(Batch, RefusesWhatOneRunCannotDoForAll) {
  using Change = std::function<void(Settings&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"num_inference_steps", [](Settings& s) { s.request.num_inference_steps = 3; }},
      {"scheduler", [](Settings& s) { s.request.scheduler = "ddim"; }},
      {"scheduler_option", [](Settings& s) { s.request.scheduler_options = {"steps_offset=1"}; }},
      {"eta", [](Settings& s) { s.request.eta = 0.5; }},
      {"vae_tiling", [](Settings& s) { s.request.vae_tiling = true; }},
      {"vae_block_size", [](Settings& s) { s.request.vae_block_size = 8; }},
      {"max_sequence_length", [](Settings& s) { s.request.max_sequence_length = 7; }},
      {"guidance_rescale",
       [](Settings& s) {
         s.guidance = 2;
         s.guidance_rescale = 0.5;
       }},
      {"original_size", [](Settings& s) { s.request.original_size = Pair{7, 32}; }},
      {"crops_coords_top_left", [](Settings& s) { s.request.crops_coords_top_left = Pair{0, 7}; }},
      {"device", [](Settings& s) { s.request.device = at::kCUDA; }},
      {"dtype", [](Settings& s) { s.request.dtype = at::kBFloat16; }},
      {"output_type", [](Settings& s) { s.request.output_type = OutputType::kLatent; }},
      {"height", [](Settings& s) { s.request.height = 40; }},
      {"width", [](Settings& s) { s.request.width = 24; }},
      // The same image by way of another size of the model.
      {"use_resolution_binning", [](Settings& s) { s.request.resolution_binning = true; }}};
  Engine engine(tiny());
  for (const auto& [name, change] : changes) {
    std::vector<Settings> batch = five_pictures();
    change(batch.back());
    try {
      engine.run(batch);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

// One replica has two pictures and the other one. Both have to ask as often whether to go on, to the very
// end.
TEST(UnevenReplicasOfRanks, HearThatTheDecodingWasCancelled) {
  Settings settings = resolve(tiny_request(16, 32, 3, {"a cat", "a dog", "a house"}), tiny());
  const parallel::Layout layout = layout_of(parallel::degrees(2, false, 1, 1, 1, 1), std::span(&settings, 1));
  const Result expected = generate(settings, tiny());
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        // The wish comes after the first image, of which the second replica has no other, or after the last.
        for (const bool is_late : {false, true}) {
          bool is_over = false;
          Observer observer;
          observer.progressed = [&](Phase phase, int64_t done, int64_t total) {
            is_over |= phase == Phase::kDecode && done >= (is_late ? total : 1);
          };
          observer.cancelled = [&] { return is_over; };
          EXPECT_THROW(engine.run(settings, layout, observer), Cancelled) << world.rank();
        }
        const Result next = engine.run(settings, layout);
        if (world.rank() == 0) expect_near(next, expected, "the next request");
      },
      comm::Wire::kShared);
}

// A component that is loaded for one layout does not serve another one. The second round loads nothing anew.
TEST(Engine, ChangesItsLayoutBetweenRequestsOfRanks) {
  using parallel::degrees;
  Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), tiny());
  // Those that split the denoiser come first: later ones could run with half of it.
  std::vector<parallel::ParallelOptions> methods = {
      degrees(1, false, 2, 1, 1, 1), degrees(1, false, 1, 1, 1, 2), degrees(1, false, 1, 1, 2, 1),
      degrees(1, true, 1, 1, 1, 1),  degrees(2, false, 1, 1, 1, 1), {}};
  methods.front().warmup_steps = settings.steps;  // nothing is stale
  methods.back().displaced_patch_degree = 2;
  methods.back().displaced_mode = parallel::DisplacedMode::kFullSync;
  const Result expected = generate(settings, tiny());
  comm::run_ranks_as_threads(
      2,
      [&](const comm::World& world) {
        Engine engine(tiny(), kNoLimit, world);
        for (const char* round : {"first", "second"}) {
          std::vector<Phase> started;
          Observer observer;
          observer.started = [&](Phase phase) { started.push_back(phase); };
          for (const parallel::ParallelOptions& options : methods) {
            const Result result = engine.run(settings, layout_of(options, std::span(&settings, 1)), observer);
            if (world.rank() == 0)
              expect_near(result, expected, fmt::format("{}, {}", parallel::degrees_text(options), round));
          }
          const auto is_loading = [](Phase phase) { return phase == Phase::kLoadDenoiser; };
          EXPECT_EQ(std::any_of(started.begin(), started.end(), is_loading), round == std::string("first"));
        }
      },
      comm::Wire::kShared);
}

// Four ranks in two dimensions and two pairs of ranks have the same inner groups, but not the same weights.
TEST(Engine, ChangesTheDimensionsOfTensorParallelRanks) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "model",
                              config = folder / "transformer" / "config.json";
  std::filesystem::copy(golden_folder("tiny-pixart"), folder, std::filesystem::copy_options::recursive);
  Json json = read_json(config);
  json["num_attention_heads"] = 4;
  json["attention_head_dim"] = 4;
  std::ofstream(config) << json.dump();
  const Model model = read_model(folder);
  const Settings settings = resolve(tiny_request(48, 32, 3, {"a cat", "a dog"}), model);
  parallel::ParallelOptions square = parallel::degrees(1, false, 1, 1, 1, 4);
  square.split_scheme = parallel::SplitScheme::k2d;
  const parallel::ParallelOptions pairs = parallel::degrees(2, false, 1, 1, 1, 2);
  const Result expected = generate(settings, model);
  comm::run_ranks_as_threads(
      4,
      [&](const comm::World& world) {
        Engine engine(model, kNoLimit, world);
        for (const parallel::ParallelOptions& options : {square, pairs, square}) {
          const auto layout = parallel::resolve_layout(options, workload(settings, model), std::nullopt);
          const Result result = engine.run(settings, layout);
          if (world.rank() == 0) expect_near(result, expected, parallel::degrees_text(options));
        }
      },
      comm::Wire::kShared);
}

// Each rank decodes some rows of a picture, which is resized as a whole.
TEST(Ranks, ResizeWhatTheyDecodeTogether) {
  Request request = tiny_request(51, 100, 3);  // any size, where it is not the model's
  request.resolution_binning = true;
  request.num_inference_steps = 2;
  const Settings settings = resolve(request, tiny());
  ASSERT_NE(settings.model_height, settings.height);
  const Result expected = generate(settings, tiny());
  EXPECT_EQ(expected.images[0].height, 51);
  EXPECT_EQ(expected.images[0].width, 100);
  comm::run_ranks_as_threads(
      3,
      [&](const comm::World& world) {
        Engine engine(tiny(), 0, world);
        const auto options = parallel::degrees(1, false, 1, 3, 1, 1);
        const Result result = engine.run(settings, layout_of(options, std::span(&settings, 1)));
        if (world.rank() == 0) expect_near(result, expected, "three ranks");
      },
      comm::Wire::kShared);
}

}  // namespace
}  // namespace tessera::engine
