// Compares toy families, with every parallel method and many products, with an oracle that shares no
// code with them: exact methods with the whole network, and PipeFusion with its definition. Ranks are
// threads.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "comm/collectives.h"
#include "engine/denoise.h"
#include "engine/given_frames.h"
#include "samplers/rectified_flow.h"
#include "tests/models/toys/all.h"
#include "tests/models/toys/naive.h"
#include "tests/support/degrees.h"
#include "tests/support/plain_sampler.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

namespace toys = models::toys;
using toys::all_toys;
using toys::Toy;

// The numbers of ranks hardly divide anything: 5 heads of keys, 6 blocks, 3 pictures, grids of odd sides.
constexpr int64_t kToyPictures = 3;
const std::vector<double> kTimesteps = {2.5, 1.75, 0.5, 0.25};

const std::vector<int64_t> kPromptOf = {1, 2, 1};

at::Tensor run(const Toy& toy, const parallel::Ranks& ranks, const samplers::Sampler& sampler,
               double guidance, double rescale = 0, const GivenFrames* given = nullptr,
               const at::Tensor& denoised_frames = {}) {
  const c10::InferenceMode inference_mode;
  toys::RandomWeights weights;
  const weights::Scope scope(weights, {.groups = {ranks.tensor_inner, ranks.tensor_outer}});
  std::optional<Range> blocks;
  if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
  const auto denoiser = toy.load(scope, models::LocalBlocks(toys::kBlocks, blocks));
  const models::LatentShape latent_shape = toy.latent_shape();
  const std::vector<models::Conditioning> prompts = toy.prompts();
  Guidance branches{.pictures = {}, .rescale = rescale};
  std::map<std::string, at::Tensor> by_picture;
  if (toy.takes_guidance_scale) by_picture[models::kGuidanceScale] = at::full({1}, guidance, at::kDouble);
  for (const int64_t prompt : kPromptOf) branches.add(prompt, 0, toy.takes_guidance_scale ? 1 : guidance);
  DenoiserStage stage(*denoiser, toy.shape(), prompts, branches.samples(ranks), latent_shape, ranks,
                      by_picture);
  Noise noise({{0, kToyPictures}});
  std::vector<double> seconds;
  const at::Tensor z = toy.noise(kToyPictures);
  at::Tensor result =
      denoise({stage, sampler, branches, ranks, denoised_frames, given}, z, noise, {}, seconds);
  if (!result.defined() || ranks.data.size == 1) return result;
  std::vector<at::Tensor> parts;
  for (const Range& part : ranks.data.parts(kToyPictures))
    parts.push_back(at::empty_like(z.narrow(0, part.begin, part.length)));
  comm::gather(result.contiguous(), ranks.data.rank == 0 ? parts : std::vector<at::Tensor>(), 0, ranks.data);
  return at::concat(parts);
}

at::Tensor run(const Toy& toy, const parallel::Ranks& ranks, double guidance, double rescale = 0) {
  return run(toy, ranks, samplers::PlainSampler(kTimesteps), guidance, rescale);
}

// What the oracle is told of a layout.
toys::naive::Problem problem_of(const Toy& toy, const parallel::Layout& layout, double guidance) {
  toys::naive::Problem problem{toy.frames, toy.rows, toy.columns, toy.patch.rows};
  problem.cut_along_frames = layout.patch_axis == parallel::GridAxis::kFrames;
  problem.patches = layout.patches;
  if (layout.patches > 1) problem.warmup = layout.warmup_steps;
  problem.prompts = toy.prompts();
  problem.prompt_of = kPromptOf;
  (toy.takes_guidance_scale ? problem.guidance_input : problem.guidance) = guidance;
  problem.timesteps = kTimesteps;
  return problem;
}

// Returns the oracle's latents for a layout. It knows of no ranks, so layouts with the same patches share
// them.
at::Tensor expect(const Toy& toy, const parallel::Layout& layout, double guidance, double rescale = 0) {
  toys::naive::Problem problem = problem_of(toy, layout, guidance);
  problem.rescale = rescale;
  static std::map<std::tuple<std::string, bool, int64_t, int64_t, double, double>, at::Tensor> known;
  at::Tensor& latents = known[{toy.name, problem.patches > 1 && problem.cut_along_frames, problem.patches,
                               problem.warmup, guidance, rescale}];
  if (latents.defined()) return latents;
  const at::Tensor z = toy.noise(kToyPictures);
  latents = toys::naive::generate(toy.evaluate, problem, toy.is_video ? z : z.unsqueeze(2)).view(z.sizes());
  return latents;
}

struct Degrees {
  int64_t dp, cfg, pp, ring, ulysses, tp;
  bool two_dimensions = false;
  int64_t patches = 0, warmup = 0, gather = 1;

  parallel::ParallelOptions options() const {
    parallel::ParallelOptions all = parallel::degrees(dp, cfg == 2, pp, ring, ulysses, tp, gather);
    if (two_dimensions) all.split_scheme = parallel::SplitScheme::k2d;
    if (pp > 1) {
      all.num_pipeline_patch = patches;
      all.warmup_steps = warmup;
    }
    return all;
  }
};

// Returns each method alone, pairs, and the largest products, in worlds of 2, 3, 4, 6 and 8.
const std::vector<Degrees>& all_degrees() {
  static const std::vector<Degrees> all = {{1, 1, 1, 1, 1, 1},
                                           {1, 2, 1, 1, 1, 1},
                                           {2, 1, 1, 1, 1, 1},
                                           {1, 1, 1, 1, 2, 1},
                                           {1, 1, 1, 2, 1, 1},
                                           {1, 1, 1, 1, 1, 2},
                                           {1, 1, 2, 1, 1, 1, false, 2, 1},
                                           {1, 1, 2, 1, 1, 1, false, 3, 0},
                                           {1, 1, 2, 1, 1, 1, false, 5, 4},
                                           {3, 1, 1, 1, 1, 1},
                                           {1, 1, 1, 1, 3, 1},
                                           {1, 1, 1, 3, 1, 1},
                                           {1, 1, 1, 1, 1, 3},
                                           {1, 1, 3, 1, 1, 1, false, 2, 1},
                                           {1, 1, 3, 1, 1, 1, false, 7, 0},
                                           {1, 1, 1, 1, 4, 1},
                                           {1, 1, 1, 4, 1, 1},
                                           {1, 1, 1, 2, 2, 1},
                                           {1, 1, 1, 1, 1, 4},
                                           {1, 1, 1, 1, 1, 4, true},
                                           {1, 2, 1, 2, 1, 1},
                                           {1, 2, 1, 1, 1, 2},
                                           {1, 1, 1, 2, 1, 2},
                                           {1, 1, 1, 1, 2, 2},
                                           {1, 1, 4, 1, 1, 1, false, 4, 1},
                                           {1, 1, 2, 1, 2, 1, false, 2, 0},
                                           {1, 1, 2, 2, 1, 1, false, 2, 1},
                                           {1, 1, 2, 1, 1, 2, false, 3, 1},
                                           {1, 2, 2, 1, 1, 1, false, 3, 0},
                                           {1, 1, 1, 3, 2, 1},
                                           {1, 1, 1, 6, 1, 1},
                                           {1, 2, 1, 1, 3, 1},
                                           {3, 1, 1, 1, 2, 1},
                                           {1, 1, 3, 2, 1, 1, false, 2, 1},
                                           {1, 1, 3, 1, 2, 1, false, 3, 1},
                                           {1, 1, 1, 8, 1, 1},
                                           {1, 1, 1, 4, 2, 1},
                                           {1, 1, 1, 2, 4, 1},
                                           {1, 2, 1, 2, 2, 1},
                                           {1, 1, 1, 2, 1, 4, true},
                                           {1, 2, 1, 2, 1, 2},
                                           {1, 1, 2, 2, 2, 1, false, 2, 1},
                                           {1, 2, 2, 1, 2, 1, false, 2, 0},
                                           {1, 1, 2, 1, 1, 4, true, 3, 1},
                                           {1, 1, 1, 1, 1, 1, false, 0, 0, 2},
                                           {1, 1, 1, 1, 1, 1, false, 0, 0, 3},
                                           {1, 1, 1, 1, 2, 1, false, 0, 0, 2},
                                           {1, 1, 1, 2, 1, 1, false, 0, 0, 2},
                                           {1, 2, 1, 1, 1, 1, false, 0, 0, 2},
                                           {1, 1, 2, 1, 1, 1, false, 2, 1, 2},
                                           {1, 1, 1, 1, 1, 2, false, 0, 0, 3},
                                           {1, 1, 1, 2, 2, 1, false, 0, 0, 2},
                                           {1, 1, 2, 2, 1, 1, false, 2, 1, 2}};
  return all;
}

class Toys : public ::testing::TestWithParam<std::tuple<size_t, int64_t>> {};  // toy, world

TEST_P(Toys, EqualTheOracle) {
  const auto [number, world_size] = GetParam();
  const Toy& toy = all_toys()[number];
  std::vector<std::pair<Degrees, parallel::Layout>> cases;
  for (const Degrees& degrees : all_degrees()) {
    if (degrees.options().degrees() != world_size) continue;
    const parallel::Workload workload{.heads = toys::kKeyHeads,
                                      .blocks = toys::kBlocks,
                                      .token_rows = toy.rows,
                                      .token_frames = toy.frames,
                                      .steps = static_cast<int64_t>(kTimesteps.size()),
                                      .pictures = kToyPictures,
                                      .guided = !toy.takes_guidance_scale};
    if (degrees.cfg == 2 && !workload.guided) continue;
    cases.emplace_back(degrees, parallel::resolve_layout(degrees.options(), workload, std::nullopt));
  }
  std::vector<at::Tensor> results(cases.size());
  const auto guidance_of = [](const Degrees& degrees) { return degrees.ring == 3 ? 1.0 : 1.5; };
  comm::run_ranks_as_threads(world_size, [&](comm::World world) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const parallel::Ranks ranks(world, cases[i].second);
      const at::Tensor own = run(toy, ranks, guidance_of(cases[i].first));
      if (world.rank() == 0) results[i] = own;
    }
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [degrees, layout] = cases[i];
    const at::Tensor expected = expect(toy, layout, guidance_of(degrees));
    EXPECT_LE((results[i] - expected).abs().max().item<double>(), 1e-4)
        << parallel::degrees_text(degrees.options()) << ", " << layout.patches << " patches, warm-up "
        << layout.warmup_steps;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Toys,
                         ::testing::Combine(::testing::Range(size_t{0}, all_toys().size()),
                                            ::testing::Values(1, 2, 3, 4, 6, 8)),
                         [](const auto& info) {
                           return fmt::format("{}{}", all_toys()[std::get<0>(info.param)].name,
                                              std::get<1>(info.param));
                         });

// Deviations are taken over whole pictures, and over all frames of a video, whichever way they are cut.
TEST(ToysRescaledOnRanks, EqualTheOracle) {
  for (const Toy& toy : all_toys()) {
    if (toy.takes_guidance_scale) continue;
    const at::Tensor expected = expect(toy, {}, 3, 0.5);
    EXPECT_GE((expected - expect(toy, {}, 3)).abs().max().item<double>(), 1e-2) << toy.name;
    // Six ranks divide the frames of the video, of which there are eleven, with five rows.
    for (const Degrees& degrees :
         {Degrees{1, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1, 1}, {3, 1, 1, 1, 2, 1}, {1, 1, 1, 6, 1, 1}}) {
      const parallel::Workload workload{.heads = toys::kKeyHeads,
                                        .blocks = toys::kBlocks,
                                        .token_rows = toy.rows,
                                        .token_frames = toy.frames,
                                        .steps = static_cast<int64_t>(kTimesteps.size()),
                                        .pictures = kToyPictures,
                                        .guided = true};
      const parallel::Layout layout = parallel::resolve_layout(degrees.options(), workload, std::nullopt);
      at::Tensor result;
      comm::run_ranks_as_threads(degrees.options().degrees(), [&](comm::World world) {
        const at::Tensor own = run(toy, parallel::Ranks(world, layout), 3, 0.5);
        if (world.rank() == 0) result = own;
      });
      EXPECT_LE((result - expected).abs().max().item<double>(), 1e-4)
          << toy.name << ", " << parallel::degrees_text(degrees.options());
    }
  }
}

// Frames that are given: some are kept, others edited from 0.6 or 0.3 of the noise on.
TEST(ToysWithGivenFramesOnRanks, EqualTheOracle) {
  const Toy& toy = all_toys()[1];
  ASSERT_TRUE(toy.is_video);
  const samplers::RectifiedFlow sampler({.steps = 4, .use_timestep_transform = false});
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor z = toy.noise(kToyPictures);
  const at::Tensor mask =
      at::tensor({1.0F, 0.0F, 0.6F, 0.3F})
          .index_select(0, at::randint(0, 4, {kToyPictures * toy.frames}, generator, at::kLong))
          .view({kToyPictures, toy.frames});
  std::vector<int64_t> of_steps = z.sizes().vec();
  of_steps.insert(of_steps.begin(), sampler.steps());
  const at::Tensor noise = at::randn(of_steps, generator);
  const GivenFrames given(mask, sampler, [&](int64_t step) { return noise[step]; });
  std::vector<at::Tensor> denoised;
  for (int64_t step = 0; step < sampler.steps(); ++step) denoised.push_back(given.masks(step).denoised);

  for (const Degrees& degrees : {Degrees{1, 1, 1, 1, 1, 1},
                                 {1, 2, 1, 2, 1, 1},
                                 {3, 1, 1, 1, 2, 1},
                                 {1, 1, 1, 2, 1, 2},
                                 {1, 1, 2, 1, 1, 1, false, 3, 1},
                                 {1, 2, 2, 2, 1, 1, false, 2, 0},
                                 // Frames are divided where there are not enough rows.
                                 {1, 1, 1, 6, 1, 1},
                                 {1, 1, 3, 1, 1, 1, false, 7, 1}}) {
    const parallel::Workload workload{.heads = toys::kKeyHeads,
                                      .blocks = toys::kBlocks,
                                      .token_rows = toy.rows,
                                      .token_frames = toy.frames,
                                      .steps = sampler.steps(),
                                      .pictures = kToyPictures,
                                      .guided = true};
    const parallel::Layout layout = parallel::resolve_layout(degrees.options(), workload, std::nullopt);
    at::Tensor result;
    comm::run_ranks_as_threads(degrees.options().degrees(), [&](comm::World world) {
      const at::Tensor own =
          run(toy, parallel::Ranks(world, layout), sampler, 1.5, 0, &given, at::stack(denoised));
      if (world.rank() == 0) result = own;
    });
    toys::naive::Problem problem = problem_of(toy, layout, 1.5);
    problem.timesteps = sampler.timesteps();
    problem.step = 0.25;
    problem.frame_mask = mask;
    problem.frame_noise = noise;
    const at::Tensor expected = toys::naive::generate(toy.evaluate, problem, z);
    EXPECT_LE((result - expected).abs().max().item<double>(), 1e-4)
        << parallel::degrees_text(degrees.options());
  }
}

// The oracle detects stale keys, which change the latents by far more than the tolerance.
TEST(ToysOracle, SeesStaleKeys) {
  for (const Toy& toy : all_toys()) {
    parallel::Layout stale;
    stale.patches = 2;
    stale.warmup_steps = 1;
    EXPECT_GE((expect(toy, stale, 1.5) - expect(toy, {}, 1.5)).abs().max().item<double>(), 1e-2) << toy.name;
  }
}

}  // namespace
}  // namespace tessera::engine
