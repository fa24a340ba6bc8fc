#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <limits>

#include "core/error.h"
#include "tests/support/degrees.h"

namespace tessera::parallel {
namespace {

// PixArt-Sigma-XL at 512 x 512 has 16 heads, 28 blocks and 32 rows of tokens; the request has 20 steps and 2
// pictures.
constexpr Workload kPixArt{.heads = 16, .blocks = 28, .token_rows = 32, .steps = 20, .pictures = 2};

// SDXL at 512 x 512 has 64 rows of latents, of which four stay together.
constexpr Workload kUNet{.heads = 5,
                         .blocks = 7,
                         .token_rows = 64,
                         .row_unit = 4,
                         .has_streams = false,
                         .has_group_norms = true,
                         .steps = 20,
                         .pictures = 2};

// 51 frames of 240 x 426 in Open-Sora 1.2: 15 frames of latents.
constexpr Workload kVideo{.heads = 16,
                          .blocks = 28,
                          .token_rows = 15,
                          .token_frames = 15,
                          .axial_attention = true,
                          .steps = 30,
                          .pictures = 1};

ParallelOptions displaced(int64_t degree) {
  ParallelOptions options;
  options.displaced_patch_degree = degree;
  return options;
}

ParallelOptions with(ParallelOptions options, void (*change)(ParallelOptions&)) {
  change(options);
  return options;
}

TEST(ParallelOptions, NameTheAxesOfPatches) {
  for (const auto& [word, axis] : {std::pair("h", GridAxis::kRows), {"t", GridAxis::kFrames}})
    EXPECT_EQ(read_fields(parallel_fields(), Json{{"pipeline_patch_axis", word}}).pipeline_patch_axis, axis);
}

TEST(Layout, OfSixteenRanks) {
  const Layout layout = resolve_layout(degrees(2, true, 2, 1, 2, 1), kPixArt, std::nullopt);
  EXPECT_EQ(Mesh(layout.sizes).world_size(), 16);
  EXPECT_EQ(layout.stage_blocks, (std::vector<int64_t>{14, 14}));
  EXPECT_EQ(layout.patches, 2);
  EXPECT_EQ(layout.warmup_steps, 1);
}

TEST(Layout, BalancesStagesWithWhatTheEndsDo) {
  const auto stages = [](int64_t blocks, int64_t degree, double embedding, double head) {
    Workload workload = kPixArt;
    workload.blocks = blocks;
    workload.embedding = embedding;
    workload.head = head;
    return resolve_layout(degrees(1, false, degree, 1, 1, 1), workload, std::nullopt).stage_blocks;
  };
  EXPECT_EQ(stages(7, 3, 0.01, 0.01), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_EQ(stages(7, 2, 0.1, 0.2), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(stages(7, 2, 0.2, 0.1), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(stages(10, 2, 0, 2.5), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(stages(3, 3, 9, 9), (std::vector<int64_t>{1, 1, 1}));  // each has one
}

TEST(Layout, OfSimulatedRanksIsOfOne) {
  ParallelOptions options = degrees(1, true, 2, 1, 2, 1);
  options.simulate_ranks = true;
  options.num_pipeline_patch = 4;
  options.warmup_steps = 3;
  const Layout layout = resolve_layout(options, kPixArt, std::nullopt);
  EXPECT_EQ(Mesh(layout.sizes).world_size(), 1);
  EXPECT_EQ(layout.stage_blocks, (std::vector<int64_t>{28}));
  EXPECT_EQ(layout.patches, 4);
  EXPECT_EQ(layout.warmup_steps, 3);
}

TEST(Layout, AllowsWhatDoesNotDivide) {
  const Layout layout = resolve_layout(degrees(1, false, 3, 3, 5, 3), kPixArt, 135);
  EXPECT_EQ(layout.stage_blocks, (std::vector<int64_t>{10, 9, 9}));
  EXPECT_EQ(layout.patches, 2);  // 32 rows over 15 ranks leave two to each
}

TEST(Layout, TwoDimensions) {
  const auto split = [](int64_t tp) {
    return resolve_layout(with(degrees(1, false, 1, 1, 1, tp),
                               [](ParallelOptions& o) { o.split_scheme = SplitScheme::k2d; }),
                          kPixArt, std::nullopt)
        .sizes;
  };
  for (const auto& [tp, outer, inner] : {std::array<int64_t, 3>{4, 2, 2}, {6, 2, 3}, {8, 2, 4}, {16, 4, 4}}) {
    EXPECT_EQ(split(tp)[Axis::kTensorOuter], outer);
    EXPECT_EQ(split(tp)[Axis::kTensorInner], inner);
  }
}

TEST(Layout, WarmupIsAtMostAllSteps) {
  const ParallelOptions options =
      with(degrees(1, false, 2, 1, 1, 1), [](ParallelOptions& o) { o.warmup_steps = 1000; });
  EXPECT_EQ(resolve_layout(options, kPixArt, std::nullopt).warmup_steps, 20);
  EXPECT_TRUE(resolve_layout(options, kPixArt, std::nullopt).is_all_warmup);
}

TEST(Layout, OfDisplacedPatches) {
  const auto displacement = [](const ParallelOptions& options, const Workload& workload) {
    return resolve_layout(options, workload, std::nullopt).displacement.value();
  };
  EXPECT_FALSE(resolve_layout(displaced(1), kUNet, std::nullopt).displacement.has_value());
  EXPECT_EQ(displacement(displaced(4), kUNet).mode, DisplacedMode::kCorrectedAsyncGn);
  EXPECT_EQ(displacement(displaced(4), kUNet).warmup_steps, 4);
  EXPECT_FALSE(resolve_layout(displaced(4), kUNet, std::nullopt).is_all_warmup);
  // With few rows of the coarsest scale norms are fresh, unless the request sets a mode; a transformer has no
  // such norms.
  EXPECT_EQ(displacement(displaced(5), kUNet).mode, DisplacedMode::kSyncGn);
  EXPECT_TRUE(resolve_layout(displaced(5), kUNet, std::nullopt).displaced_mode_was_changed);
  EXPECT_EQ(displacement(displaced(32), kPixArt).mode, DisplacedMode::kCorrectedAsyncGn);
  const ParallelOptions wish = with(displaced(5), [](ParallelOptions& o) {
    o.displaced_mode = DisplacedMode::kCorrectedAsyncGn;
    o.warmup_steps = 0;
  });
  EXPECT_EQ(displacement(wish, kUNet).mode, DisplacedMode::kCorrectedAsyncGn);
  EXPECT_EQ(displacement(wish, kUNet).warmup_steps, 0);
  EXPECT_FALSE(resolve_layout(wish, kUNet, std::nullopt).displaced_mode_was_changed);
}

// Frames, rows and columns of tokens; the ranks of a ring; patches.
struct AxesCase {
  int64_t frames, rows, ring, patches;
  GridAxis rank_axis, patch_axis;
  std::optional<GridAxis> wish = {};
};

TEST(Layout, RanksAndPatchesDivideTheAxesThatAreLongEnough) {
  using enum GridAxis;
  for (const AxesCase& c : std::vector<AxesCase>{{15, 15, 4, 3, kRows, kRows},
                                                 {15, 15, 4, 3, kRows, kFrames, kFrames},
                                                 {15, 15, 4, 5, kFrames, kRows, kRows},
                                                 {15, 15, 4, 15, kFrames, kRows},
                                                 {15, 3, 4, 3, kFrames, kRows, kRows},
                                                 {15, 3, 4, 3, kFrames, kFrames, kFrames},
                                                 {15, 3, 2, 15, kRows, kFrames, kFrames},
                                                 {16, 3, 4, 4, kFrames, kFrames},
                                                 {2, 15, 4, 3, kRows, kRows},
                                                 {1, 15, 5, 3, kRows, kRows}}) {
    Workload workload = kPixArt;
    workload.token_frames = c.frames;
    workload.token_rows = c.rows;
    ParallelOptions options = degrees(1, false, 2, c.ring, 1, 1);
    options.num_pipeline_patch = c.patches;
    options.pipeline_patch_axis = c.wish;
    const std::string name =
        fmt::format("{} frames, {} rows, {} ranks, {} patches", c.frames, c.rows, c.ring, c.patches);
    SCOPED_TRACE(name);
    const Layout layout = resolve_layout(options, workload, std::nullopt);
    EXPECT_EQ(layout.rank_axis, c.rank_axis);
    EXPECT_EQ(layout.patch_axis, c.patch_axis);
  }
}

TEST(Layout, StagesAsWished) {
  const ParallelOptions options = with(degrees(1, false, 3, 1, 1, 1), [](ParallelOptions& o) {
    o.attn_layer_num_for_pp = {8, 12, 8};
    o.num_pipeline_patch = 5;
    o.warmup_steps = 0;
  });
  const Layout layout = resolve_layout(options, kPixArt, 3);
  EXPECT_EQ(layout.stage_blocks, (std::vector<int64_t>{8, 12, 8}));
  EXPECT_EQ(layout.patches, 5);
  EXPECT_EQ(layout.warmup_steps, 0);
}

struct Refused {
  ParallelOptions options;
  std::optional<int64_t> world;
  std::vector<std::string> says;  // parts of the one line
  Workload workload = kPixArt;
};

std::vector<Refused> refused() {
  using O = ParallelOptions;
  std::vector<Refused> rows;
  const auto add = [&](O options, std::optional<int64_t> world, std::vector<std::string> says,
                       Workload workload = kPixArt) {
    rows.push_back({std::move(options), world, std::move(says), workload});
  };
  // Each flag rejects degrees below 1 or absurdly large ones.
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{4097}, int64_t{1} << 62}) {
    add(degrees(bad, false, 1, 1, 1, 1), {}, {"[data_parallel_degree]", "from 1 to 4096"});
    add(degrees(1, false, bad, 1, 1, 1), {}, {"[pipefusion_parallel_degree]", "from 1 to 4096"});
    add(degrees(1, false, 1, bad, 1, 1), {}, {"[ring_degree]", "from 1 to 4096"});
    add(degrees(1, false, 1, 1, 1, 1, bad), {}, {"[kv_gather_degree]", "from 1 to 4096"});
    add(degrees(1, false, 1, 1, bad, 1), {}, {"[ulysses_degree]", "from 1 to 4096"});
    add(degrees(1, false, 1, 1, 1, bad), {}, {"[tensor_parallel_degree]", "from 1 to 4096"});
  }
  for (const int64_t bad : {0, -3}) {
    O options;
    options.nproc = bad;
    add(options, {}, {"[nproc]", "1 or more"});
  }
  // The product of the degrees must be the number of ranks.
  add(degrees(1, false, 1, 1, 1, 1), 2, {"needs 1 rank (no degrees), but there are 2", "nearest valid: "});
  add(degrees(1, false, 1, 1, 2, 1), 4, {"needs 2 ranks", "there are 4", "on 4 ranks"});
  add(degrees(1, false, 1, 2, 2, 1), 2, {"needs 4 ranks", "there are 2", "on 2 ranks"});
  add(degrees(2, true, 2, 1, 2, 1), 8, {"needs 16 ranks", "there are 8", "on 8 ranks"});
  add(degrees(1, false, 1, 1, 3, 1), 5, {"needs 3 ranks", "nearest valid: ulysses_degree 5 on 5 ranks"});
  for (const int64_t nproc : {1, 3, 8}) {
    O options = degrees(1, true, 1, 1, 2, 1);
    options.nproc = nproc;
    add(options, {}, {"needs 4 ranks", fmt::format("there are {}", nproc)});
  }
  {
    O options = degrees(1, true, 1, 1, 1, 1);
    options.nproc = 2;
    add(options, 4, {"nproc 2 but the launcher started 4 ranks", "needs 2 ranks"});
  }
  // Data parallelism needs a picture for each replica.
  for (const int64_t dp : {3, 4, 7}) {
    add(degrees(dp, false, 1, 1, 1, 1), {},
        {fmt::format("data_parallel_degree {} needs as many images, the request has 2", dp),
         "nearest valid"});
  }
  // CFG parallelism needs two branches.
  Workload unguided = kPixArt;
  unguided.guided = false;
  add(degrees(1, true, 1, 1, 1, 1), {}, {"use_cfg_parallel needs a guidance scale above 1", "on 2 ranks"},
      unguided);
  add(degrees(1, true, 1, 1, 4, 1), {}, {"needs a guidance scale", "nearest valid", "on 8 ranks"}, unguided);
  add(degrees(2, true, 2, 1, 1, 1), {}, {"needs a guidance scale", "on 8 ranks"}, unguided);
  // A pipeline needs a block for each stage.
  for (const int64_t pp : {29, 30, 64}) {
    add(degrees(1, false, pp, 1, 1, 1), {},
        {"needs a block for each stage, the model has 28", "nearest valid"});
  }
  // Ulysses and tensor parallelism need a head for each rank.
  add(degrees(1, false, 1, 1, 17, 1), {}, {"needs a head for each rank, the model has 16", "on 17 ranks"});
  add(degrees(1, false, 1, 1, 1, 17), {}, {"tensor_parallel_degree 17", "needs a head"});
  add(degrees(1, false, 1, 1, 6, 3), {}, {"tensor_parallel_degree 3 x ulysses_degree 6", "on 18 ranks"});
  add(degrees(1, false, 1, 1, 32, 1), {}, {"needs a head", "nearest valid: ", "on 32 ranks"});
  // Sequence parallelism needs a row of tokens for each rank.
  add(degrees(1, false, 1, 33, 1, 1), {}, {"needs a row of tokens for each rank, there are 32"});
  add(degrees(1, false, 1, 12, 3, 1), {}, {"ring_degree 12 x ulysses_degree 3 needs a row"});
  add(degrees(1, false, 1, 1, 1, 1, 33), {},
      {"kv_gather_degree 33 needs a row of tokens for each rank, there are 32", "kv_gather_degree 32 on 32"});
  add(degrees(1, false, 1, 4, 3, 1, 3), {},
      {"ring_degree 4 x kv_gather_degree 3 x ulysses_degree 3 needs a row"});
  Workload small{.heads = 3, .blocks = 2, .token_rows = 4, .steps = 2, .pictures = 1, .guided = false};
  add(degrees(1, false, 1, 5, 1, 1), {}, {"there are 4", "nearest valid"}, small);
  add(degrees(2, true, 3, 5, 4, 1), {},
      {"needs as many images", "guidance scale", "a block for each stage", "a head for each rank",
       "a row of tokens", "nearest valid: "},
      small);
  // Flags that would have no effect are rejected.
  const auto pipefusion_only = [&](void (*change)(O&), const char* flag) {
    for (const int64_t ulysses : {1, 2}) {
      add(with(degrees(1, false, 1, 1, ulysses, 1), change), {},
          {fmt::format("{} applies to PipeFusion only: it needs pipefusion_parallel_degree 2 or more",
                       flag)});
    }
  };
  pipefusion_only([](O& o) { o.num_pipeline_patch = 4; }, "num_pipeline_patch");
  pipefusion_only([](O& o) { o.attn_layer_num_for_pp = {28}; }, "attn_layer_num_for_pp");
  for (const auto change : {+[](O& o) { o.pipeline_patch_axis = GridAxis::kRows; },
                            +[](O& o) { o.pipeline_patch_axis = GridAxis::kFrames; }})
    pipefusion_only(change, "pipeline_patch_axis");
  add(with(degrees(1, false, 2, 1, 1, 1), [](O& o) { o.pipeline_patch_axis = GridAxis::kFrames; }), {},
      {"pipeline_patch_axis t is for videos of several frames"});
  for (const bool dynamic : {false, true}) {
    O options = degrees(1, false, 1, 2, 1, 1);
    options.dynamic_sequence_parallel = dynamic;
    add(options, {}, {fmt::format("dynamic_sequence_parallel: {} needs ulysses_degree 2 or more", dynamic)},
        kVideo);
  }
  for (const auto change : {+[](O& o) { o.dynamic_sequence_parallel = true; },
                            +[](O& o) { o.dynamic_sequence_parallel = false; }})
    add(with(degrees(1, false, 1, 1, 2, 1), change), {},
        {"dynamic_sequence_parallel is for models whose attention stays within frames"});
  add(with(degrees(1, false, 1, 1, 2, 1), [](O& o) { o.warmup_steps = 0; }), {},
      {"warmup_steps", "needs pipefusion_parallel_degree or displaced_patch_degree 2 or more"});
  add(with(degrees(1, false, 1, 1, 2, 1), [](O& o) { o.displaced_mode = DisplacedMode::kNoSync; }), {},
      {"displaced_mode needs displaced_patch_degree 2 or more"});
  for (const SplitScheme scheme : {SplitScheme::k1d, SplitScheme::k2d}) {
    O options;
    options.split_scheme = scheme;
    add(options, {}, {"split_scheme needs tensor_parallel_degree 2 or more"});
  }
  for (const int64_t prime : {2, 3, 5, 7, 13}) {
    O options = degrees(1, false, 1, 1, 1, prime);
    options.split_scheme = SplitScheme::k2d;
    add(options, {}, {fmt::format("that is a product (4, 6, 8, 9, ...), not {}", prime), "nearest valid"});
  }
  // The numbers of patches and warm-up steps have limits.
  for (const int64_t bad : {0, -1, 33}) {
    O options = degrees(1, false, 2, 1, 1, 1);
    options.num_pipeline_patch = bad;
    add(options, {}, {fmt::format("num_pipeline_patch {} must be from 1 to 32", bad)});
  }
  {
    O options = degrees(1, false, 2, 2, 2, 1);
    options.num_pipeline_patch = 9;
    add(options, {}, {"num_pipeline_patch 9 must be from 1 to 8"});
    options.num_pipeline_patch = 8;
    options.warmup_steps = -1;
    add(options, {}, {"[warmup_steps] must be 0 or more, got -1"});
  }
  // The blocks of the stages must be positive and add up.
  for (const std::vector<int64_t>& stages :
       {std::vector<int64_t>{28}, {14, 13}, {14, 15}, {0, 28}, {29, -1}, {10, 9, 9}}) {
    O options = degrees(1, false, 2, 1, 1, 1);
    options.attn_layer_num_for_pp = stages;
    add(options, {}, {"must be 2 positive numbers with the sum 28, such as 14 14"});
  }
  // Numbers whose products and sums are beyond 64 bits.
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  {
    O options = degrees(1, false, 2, 2, 2, 1);
    options.num_pipeline_patch = kHuge;
    add(options, {}, {fmt::format("num_pipeline_patch {} must be from 1 to", kHuge)});
    options = degrees(1, false, 2, 1, 1, 1);
    options.attn_layer_num_for_pp = {kHuge, kHuge};
    add(options, {}, {"must be 2 positive numbers with the sum 28, such as 14 14"});
    options = degrees(4096, true, 4096, 4096, 4096, 4096);
    options.displaced_patch_degree = 4096;
    add(options, 2, {fmt::format("needs {} ranks", kHuge), "there are 2"});
  }
  // Where there are fewer rows than ranks, frames are divided.
  {
    Workload workload = kVideo;
    workload.token_rows = 4;
    workload.token_frames = 8;
    add(degrees(1, false, 1, 9, 1, 1), {}, {"ring_degree 9 needs a frame for each rank, there are 8"},
        workload);
  }
  // Some flags depend on the number of ranks.
  {
    O options = degrees(1, false, 1, 1, 1, 1);
    options.simulate_ranks = true;
    add(options, {}, {"simulate_ranks needs the degrees"});
    options = degrees(1, true, 1, 1, 1, 1);
    options.simulate_ranks = true;
    add(options, 2, {"simulate_ranks is for one rank, but there are 2"});
    options.nproc = 2;
    add(options, {}, {"simulate_ranks is for one rank, but there are 2"});
    options.nproc.reset();
    options.text_encoder_parallel = false;
    add(options, {}, {"text_encoder_parallel: false applies to runs with several ranks only"});
  }
  // Shares are one for each rank, and positive.
  for (const std::vector<double>& shares :
       {std::vector<double>{3}, {3, 2}, {3, 2, 1, 1}, {3, 0, 1}, {3, 1, -2}}) {
    O options = degrees(1, false, 1, 3, 1, 1);
    options.rank_shares = shares;
    add(options, {}, {fmt::format("rank_shares {} must be 3 positive numbers", fmt::join(shares, " "))});
  }
  {
    O options = degrees(1, false, 1, 2, 1, 1);
    options.rank_shares = {1, std::numeric_limits<double>::infinity()};
    add(options, {}, {"[rank_shares] must be a finite number, got inf"});
    options.rank_shares = {1, 2};
    options.simulate_ranks = true;
    add(options, {}, {"rank_shares applies to runs with several ranks only"});
    add(with({}, [](O& o) { o.rank_shares = {1}; }), {},
        {"rank_shares applies to runs with several ranks only"});
  }
  // Displaced patches have a limit and exclude other methods.
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{4097}})
    add(displaced(bad), {}, {"[displaced_patch_degree]", "from 1 to 4096"});
  add(displaced(17), {}, {"displaced_patch_degree 17 needs a row of the coarsest scale", "there are 16"},
      kUNet);
  add(displaced(33), {}, {"displaced_patch_degree 33 needs a row of tokens for each rank, there are 32"});
  add(with(displaced(2), [](O& o) { o.ulysses_degree = 2; }), {},
      {"displaced_patch_degree 2 cannot be combined"});
  add(with(displaced(2), [](O& o) { o.ring_degree = 2; }), {},
      {"displaced_patch_degree 2 cannot be combined"});
  add(with(displaced(2), [](O& o) { o.kv_gather_degree = 2; }), {},
      {"displaced_patch_degree 2 cannot be combined", "kv_gather_degree, ring_degree"});
  add(with(displaced(2), [](O& o) { o.pipefusion_parallel_degree = 2; }), {},
      {"displaced_patch_degree 2 cannot be combined"});
  add(with(displaced(2), [](O& o) { o.simulate_ranks = true; }), {}, {"simulate_ranks does not simulate"});
  add(with(displaced(2), [](O& o) { o.warmup_steps = -1; }), {}, {"[warmup_steps] must be 0 or more"});
  add(degrees(1, false, 2, 1, 1, 1), {}, {"pipefusion_parallel_degree 2: PipeFusion does not support"},
      kUNet);
  // A sampler that needs whole images leaves methods that do not divide them.
  {
    Workload workload = kPixArt;
    workload.has_elementwise_sampler = false;
    const char* const rule = "divide an image, but the sampler thresholds each image as a whole";
    add(degrees(1, false, 1, 1, 2, 1), {}, {rule, "nearest valid: tensor_parallel_degree 2 on 2 ranks"},
        workload);
    add(degrees(1, false, 1, 4, 1, 1), {}, {rule, "nearest valid: tensor_parallel_degree 4 on 4 ranks"},
        workload);
    add(degrees(1, true, 2, 1, 1, 1), {}, {rule, "nearest valid: use_cfg_parallel on 2 ranks"}, workload);
    add(displaced(2), {}, {rule, "nearest valid: "}, workload);
  }
  // Guidance that limits the norm of a whole image leaves methods that do not take it patch by patch.
  {
    Workload workload = kPixArt;
    workload.has_elementwise_guidance = false;
    add(degrees(1, true, 2, 1, 1, 1), {},
        {"pipefusion_parallel_degree 2 combines the branches of guidance patch by patch, but "
         "cfg_normalization",
         "nearest valid: use_cfg_parallel on 2 ranks"},
        workload);
    workload.unguided_scale = 0;
    workload.guided = false;
    add(degrees(1, true, 1, 1, 1, 1), {}, {"use_cfg_parallel needs a guidance scale above 0"}, workload);
    workload.unguided_scale = std::numeric_limits<double>::infinity();
    add(degrees(1, true, 1, 1, 1, 1), {}, {"use_cfg_parallel needs guidance, and the model is distilled"},
        workload);
  }
  // One message reports everything that is wrong.
  {
    O options = degrees(3, false, 2, 1, 17, 1);
    options.num_pipeline_patch = 99;
    options.attn_layer_num_for_pp = {1};
    options.split_scheme = SplitScheme::k2d;
    add(options, 7,
        {"there are 7", "as many images", "a head for each rank", "num_pipeline_patch 99", "attn_layer",
         "split_scheme", "nearest valid"});
  }
  return rows;
}

TEST(Layout, RefusesInOneLineThatSaysWhatWouldBeValid) {
  const std::vector<Refused> rows = refused();
  EXPECT_GE(rows.size(), 60u);
  for (const Refused& row : rows) {
    const std::string line = refusal(row.options, row.workload, row.world);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    for (const std::string& part : row.says)
      EXPECT_NE(line.find(part), std::string::npos) << "no '" << part << "' in: " << line;
  }
}

}  // namespace
}  // namespace tessera::parallel
