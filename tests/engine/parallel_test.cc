// Compares every parallel method and many of their products with one rank, and PipeFusion with one rank that
// follows the same schedule. Ranks are threads.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "core/json.h"
#include "engine/denoise.h"
#include "parallel/ranks.h"
#include "tests/support/degrees.h"
#include "tests/support/random_pixart.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {
namespace {

using parallel::degrees;

// The numbers of ranks do not divide 5 heads, 7 blocks, 13 rows and 3 pictures.
constexpr int64_t kHeads = 5, kBlocks = 7, kRows = 13, kColumns = 6, kPictures = 3, kSteps = 5;

const RandomPixArt& model() {
  static const RandomPixArt random(kHeads, kBlocks);
  return random;
}

struct Case {
  std::string name;
  parallel::ParallelOptions options;
  bool guided = true;
  const char* scheduler = "DPMSolverMultistepScheduler";
  uint64_t seed = 11;
};

at::Tensor run(const parallel::Ranks& ranks, const Case& c, at::ScalarType dtype) {
  const c10::InferenceMode inference_mode;
  auto generator = at::detail::createCPUGenerator(c.seed + 1);
  const auto draw = [&](at::IntArrayRef shape) { return at::randn(shape, generator); };
  std::vector<models::Conditioning> prompts;
  for (const int64_t length : {1, 7, 3})
    prompts.push_back({{models::kTokens, draw({length, RandomPixArt::kCaption})}});

  const Range blocks = ranks.pipeline.size > 1 ? ranks.layout.stage(ranks.pipeline.rank) : Range{0, kBlocks};
  const auto denoiser =
      model().load({.dtype = dtype, .groups = {ranks.tensor_inner, ranks.tensor_outer}}, blocks);
  const models::LatentShape latent_shape{2 * kRows, 2 * kColumns, 8};
  const auto sampler = samplers::make_sampler(
      // There is little noise, because otherwise an untrained model's latents grow a hundredfold.
      JsonConfig(Json{{"_class_name", c.scheduler}, {"beta_schedule", "linear"}, {"beta_end", 0.002}},
                 "scheduler"),
      std::nullopt, {kSteps, kRows * kColumns});
  // A larger scale would drive two branches of random weights far apart.
  Guidance guidance;
  for (const int64_t prompt : {1, 2, c.guided ? 1 : 0}) guidance.add(prompt, 0, c.guided ? 1.5 : 1);
  Noise noise({{c.seed, kPictures}});
  const at::Tensor z = noise.draw({kPictures, 4, 2 * kRows, 2 * kColumns}) * sampler->init_noise_sigma();
  std::vector<double> seconds;
  DenoiserStage stage(*denoiser, model().shape(), prompts, guidance.samples(ranks), latent_shape, ranks);
  at::Tensor result = denoise({stage, *sampler, guidance, ranks}, z, noise, {}, seconds);
  EXPECT_EQ(seconds.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(result.defined(), ranks.replica.rank == 0);
  if (!result.defined() || ranks.data.size == 1) return result;
  std::vector<at::Tensor> parts;
  for (const Range& part : ranks.data.parts(kPictures))
    parts.push_back(at::empty({part.length, 4, 2 * kRows, 2 * kColumns}));
  comm::gather(result, ranks.data.rank == 0 ? parts : std::vector<at::Tensor>(), 0, ranks.data);
  return at::concat(parts);
}

parallel::Layout layout_of(const Case& c) {
  return parallel::resolve_layout(c.options,
                                  {.heads = kHeads,
                                   .blocks = kBlocks,
                                   .token_rows = kRows,
                                   .steps = kSteps,
                                   .pictures = kPictures,
                                   .guided = c.guided},
                                  std::nullopt);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).square().mean().sqrt().item<double>();
}

// Runs all cases, which have one world size, in one world, because connecting takes longer than running.
std::vector<at::Tensor> run_all(const std::vector<Case>& cases, at::ScalarType dtype) {
  std::vector<at::Tensor> results(cases.size());
  comm::run_ranks_as_threads(cases.front().options.degrees(), [&](comm::World world) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const parallel::Ranks ranks(world, layout_of(cases[i]));
      const at::Tensor own = run(ranks, cases[i], dtype);
      if (world.rank() == 0) results[i] = own;
    }
  });
  return results;
}

template <typename Expected>
void compare(const std::vector<Case>& cases, double tolerance, const Expected& expected) {
  const std::vector<at::Tensor> results = run_all(cases, at::kFloat);
  for (size_t i = 0; i < cases.size(); ++i)
    EXPECT_LE(difference(results[i], expected(cases[i])), tolerance) << cases[i].name;
}

std::string name_of(const parallel::ParallelOptions& o) {
  std::string name =
      fmt::format("dp{}_cfg{}_pp{}_ring{}_ulysses{}_tp{}", o.data_parallel_degree, o.use_cfg_parallel ? 2 : 1,
                  o.pipefusion_parallel_degree, o.ring_degree, o.ulysses_degree, o.tensor_parallel_degree);
  if (o.kv_gather_degree > 1) name += fmt::format("_gather{}", o.kv_gather_degree);
  if (o.displaced_patch_degree > 1) name += fmt::format("_displaced{}", o.displaced_patch_degree);
  if (o.split_scheme) name += "_2d";
  if (o.num_pipeline_patch) name += fmt::format("_patches{}", *o.num_pipeline_patch);
  if (o.warmup_steps) name += fmt::format("_warmup{}", *o.warmup_steps);
  return name;
}

// Returns all products of the exact methods in worlds of 2, 3, 4, 6 and 8.
std::vector<Case> exact_cases() {
  std::vector<Case> cases;
  for (const int64_t world : {2, 3, 4, 6, 8}) {
    for (const int64_t dp : {1, 2, 3}) {
      for (const bool cfg : {false, true}) {
        for (const int64_t ring : {1, 2, 3, 4, 6}) {
          for (const int64_t ulysses : {1, 2, 3, 4}) {
            for (const int64_t tp : {1, 2, 3, 4}) {
              for (const int64_t gather : {1, 2, 3, 4}) {
                const auto options = degrees(dp, cfg, 1, ring, ulysses, tp, gather);
                if (options.degrees() != world || tp * ulysses > kHeads) continue;
                cases.push_back({name_of(options), options});
                if (tp != 4) continue;
                cases.push_back({"", options});
                cases.back().options.split_scheme = parallel::SplitScheme::k2d;
                cases.back().name = name_of(cases.back().options);
              }
            }
          }
        }
      }
    }
  }
  for (const int64_t ranks : {2, 3, 4, 8}) {
    const auto add_displaced = [&](parallel::ParallelOptions options) {
      options.displaced_patch_degree = ranks;
      options.displaced_mode = parallel::DisplacedMode::kFullSync;
      cases.push_back({name_of(options), options});
      options.displaced_mode = parallel::DisplacedMode::kCorrectedAsyncGn;
      options.warmup_steps = kSteps;
      cases.push_back({name_of(options), options});
    };
    add_displaced({});
    if (ranks > 4) continue;
    add_displaced(degrees(1, true, 1, 1, 1, 1));
    add_displaced(degrees(2, false, 1, 1, 1, 1));
    add_displaced(degrees(1, false, 1, 1, 1, 2));
  }
  cases.push_back({"unguided", degrees(1, false, 1, 2, 2, 1), false});
  cases.push_back({"gathered", degrees(1, false, 1, 1, 1, 1, 6)});
  cases.push_back({"noisy_sampler", degrees(2, true, 1, 1, 2, 1), true, "EulerAncestralDiscreteScheduler"});
  return cases;
}

std::vector<Case> of_world(std::vector<Case> cases, int64_t size) {
  std::erase_if(cases, [&](const Case& c) { return c.options.degrees() != size; });
  return cases;
}

// The same with shares of the ranks, drawn anew for each.
std::vector<Case> with_shares(std::vector<Case> cases) {
  constexpr std::array kShares = {1.0, 1.5, 2.0, 3.0, 7.0};
  uint32_t seed = 5;
  for (Case& c : cases) {
    for (int64_t rank = 0; rank < c.options.degrees(); ++rank) {
      seed = seed * 1664525 + 1013904223;
      c.options.rank_shares.push_back(kShares[(seed >> 16) % kShares.size()]);
    }
    c.name += fmt::format(", shares {}", fmt::join(c.options.rank_shares, " "));
  }
  return cases;
}

class Worlds : public ::testing::TestWithParam<int64_t> {};

void expect_one_rank(const std::vector<Case>& cases) {
  const at::Tensor guided = run({}, {"", {}}, at::kFloat);
  compare(cases, 1e-4, [&](const Case& c) {
    const bool usual = c.guided && std::string_view(c.scheduler) == Case().scheduler;
    return usual ? guided : run({}, c, at::kFloat);
  });
}

TEST_P(Worlds, ExactMethodsEqualOneRank) {
  expect_one_rank(of_world(exact_cases(), GetParam()));
}

TEST_P(Worlds, ExactMethodsOfUnequalRanksEqualOneRank) {
  expect_one_rank(with_shares(of_world(exact_cases(), GetParam())));
}

using SmallWorlds = Worlds;

// Ranks add in another order, which in bf16 rounds differently. The latents must not be farther from those in
// fp32 than one rank's rounding takes them. Data and CFG parallelism round as one rank does, and larger
// worlds as small ones.
TEST_P(SmallWorlds, ExactMethodsInBf16AreAsNearToFp32AsOneRank) {
  std::vector<Case> methods = of_world(exact_cases(), GetParam());
  std::erase_if(methods, [](const Case& c) {
    return c.options.data_parallel_degree > 1 || c.options.use_cfg_parallel || !c.guided;
  });
  constexpr uint64_t kSeeds = 4;  // several seeds, because the error of one tiny picture is noisy
  std::vector<Case> cases;
  for (const Case& method : methods) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      cases.push_back(method);
      cases.back().seed = seed;
    }
  }
  std::vector<at::Tensor> truths;
  double of_one_rank = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    truths.push_back(run({}, {.name = "", .options = {}, .seed = seed}, at::kFloat));
    of_one_rank += distance(run({}, {.name = "", .options = {}, .seed = seed}, at::kBFloat16), truths.back());
  }
  const std::vector<at::Tensor> results = run_all(cases, at::kBFloat16);
  for (size_t i = 0; i < methods.size(); ++i) {
    double distances = 0;
    for (size_t seed = 0; seed < kSeeds; ++seed)
      distances += distance(results[i * kSeeds + seed], truths[seed]);
    EXPECT_LE(distances, 1.2 * of_one_rank) << methods[i].name;
  }
}

std::vector<Case> pipeline_cases() {
  std::vector<Case> cases;
  const auto add = [&](parallel::ParallelOptions options, int64_t patches, int64_t warmup,
                       const char* scheduler = "DPMSolverMultistepScheduler") {
    options.num_pipeline_patch = patches;
    options.warmup_steps = warmup;
    cases.push_back(
        {name_of(options) + (scheduler[0] == 'D' ? "" : "_other_sampler"), options, true, scheduler});
  };
  for (const int64_t stages : {2, 3, 4}) {
    for (const int64_t patches : {1, 2, 3, 4, 9}) {
      for (const int64_t warmup : {0, 1, 3}) add(degrees(1, false, stages, 1, 1, 1), patches, warmup);
    }
  }
  add(degrees(1, false, 6, 1, 1, 1), 5, 1);
  for (const int64_t warmup : {0, 1}) {
    add(degrees(1, true, 2, 1, 1, 1), 3, warmup);
    add(degrees(2, false, 2, 1, 1, 1), 3, warmup);
    add(degrees(1, false, 2, 1, 2, 1), 3, warmup);
    add(degrees(1, false, 2, 2, 1, 1), 3, warmup);
    add(degrees(1, false, 2, 1, 1, 1, 2), 3, warmup);
    add(degrees(1, false, 2, 1, 1, 1, 3), 2, warmup);
    add(degrees(1, false, 2, 1, 2, 1, 2), 3, warmup);
    add(degrees(1, false, 2, 2, 1, 1, 2), 3, warmup);
    add(degrees(1, false, 2, 1, 1, 2), 3, warmup);
    add(degrees(1, false, 2, 2, 2, 1), 3, warmup);
    add(degrees(1, true, 2, 1, 2, 1), 4, warmup);
    add(degrees(2, true, 2, 1, 1, 1), 2, warmup);
    add(degrees(1, false, 2, 2, 1, 2), 2, warmup);
  }
  add(degrees(1, true, 2, 1, 1, 1), 3, 1, "EulerAncestralDiscreteScheduler");
  return cases;
}

at::Tensor with_the_same_schedule(const Case& c) {
  const parallel::Layout layout = layout_of(c);
  parallel::Ranks alone;
  alone.layout.patches = layout.patches;
  alone.layout.warmup_steps = layout.warmup_steps;
  return run(alone, c, at::kFloat);
}

TEST_P(Worlds, PipeFusionEqualsOneRankWithTheSameSchedule) {
  compare(of_world(pipeline_cases(), GetParam()), 1e-4, with_the_same_schedule);
}

TEST_P(Worlds, PipeFusionOfUnequalRanksEqualsOneRankWithTheSameSchedule) {
  compare(with_shares(of_world(pipeline_cases(), GetParam())), 1e-4, with_the_same_schedule);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Worlds, ::testing::Values(2, 3, 4, 6, 8));
INSTANTIATE_TEST_SUITE_P(Ranks, SmallWorlds, ::testing::Values(2, 3, 4));

TEST(Cases, AreManyProducts) {
  EXPECT_GE(exact_cases().size(), 40U);
}

TEST(PipeFusionOfRanks, EqualsOneRankWhenAllStepsAreWarmUp) {
  Case c{"", degrees(1, false, 2, 1, 2, 1)};
  c.options.num_pipeline_patch = 3;
  c.options.warmup_steps = kSteps;
  compare({c}, 1e-4, [](const Case& same) { return run({}, same, at::kFloat); });
}

TEST(PipeFusionOfRanks, ReadsStaleKeysWithoutWarmUp) {
  parallel::Ranks alone;
  alone.layout.patches = 3;
  alone.layout.warmup_steps = 1;
  EXPECT_GE(difference(run(alone, {"", {}}, at::kFloat), run({}, {"", {}}, at::kFloat)), 1e-3);
}

}  // namespace
}  // namespace tessera::engine
