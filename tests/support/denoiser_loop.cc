#include "tests/support/denoiser_loop.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "engine/denoise.h"
#include "tests/support/degrees.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "weights/checkpoint.h"

namespace tessera::engine {
namespace {

at::Tensor run_loop(const DenoiserLoop& loop, const parallel::Ranks& ranks) {
  const c10::InferenceMode inference_mode;
  weights::Checkpoint checkpoint(golden_folder(loop.folder), weights::Library::kDiffusers);
  std::optional<Range> blocks;
  if (ranks.pipeline.size > 1) blocks = ranks.layout.stage(ranks.pipeline.rank);
  const std::unique_ptr<models::Denoiser> denoiser =
      loop.load({checkpoint, {.dtype = at::kFloat, .groups = {ranks.tensor_inner, ranks.tensor_outer}}},
                models::LocalBlocks(loop.shape.blocks, blocks));
  const at::Tensor& z = loop.latents;
  const models::LatentShape latent_shape{z.size(2), z.size(3), 8};
  const std::unique_ptr<samplers::Sampler> sampler = loop.make_sampler();
  DenoiserStage stage(*denoiser, loop.shape, loop.prompts, loop.guidance.samples(ranks), latent_shape, ranks,
                      {}, loop.references);
  Noise noise({{0, z.size(0)}});
  std::vector<double> seconds;
  at::Tensor result = denoise({stage, *sampler, loop.guidance, ranks}, z, noise, {}, seconds);
  if (!result.defined() || ranks.data.size == 1) return result;
  std::vector<at::Tensor> parts;
  for (const Range& part : ranks.data.parts(z.size(0)))
    parts.push_back(at::empty_like(z.narrow(0, part.begin, part.length)));
  comm::gather(result.contiguous(), ranks.data.rank == 0 ? parts : std::vector<at::Tensor>(), 0, ranks.data);
  return at::concat(parts);
}

// All products of exact methods for a guided denoiser of `heads` heads.
std::vector<parallel::ParallelOptions> exact_layouts(int64_t ranks, int64_t heads) {
  std::vector<parallel::ParallelOptions> all;
  for (const int64_t dp : {1, 2, 3}) {
    for (const bool cfg : {false, true}) {
      for (const int64_t ring : {1, 2, 3, 4}) {
        for (const int64_t ulysses : {1, 2, 3, 4}) {
          for (const int64_t tp : {1, 2, 3, 4}) {
            for (const int64_t gather : {1, 2, 3, 4}) {
              parallel::ParallelOptions options = parallel::degrees(dp, cfg, 1, ring, ulysses, tp, gather);
              if (options.degrees() != ranks || tp * ulysses > heads) continue;
              all.push_back(options);
              if (tp != 4) continue;
              options.split_scheme = parallel::SplitScheme::k2d;
              all.push_back(options);
            }
          }
        }
      }
    }
  }
  // Where all blocks of a step take all patches, PipeFusion is exact.
  parallel::ParallelOptions pipeline = parallel::degrees(1, false, ranks, 1, 1, 1);
  pipeline.num_pipeline_patch = 1;
  all.push_back(pipeline);
  parallel::ParallelOptions displaced;
  displaced.displaced_patch_degree = ranks;
  displaced.displaced_mode = parallel::DisplacedMode::kFullSync;
  all.push_back(displaced);
  return all;
}

// PipeFusion alone and with each method that divides a stage.
std::vector<parallel::ParallelOptions> pipefusion_layouts(int64_t parts) {
  using parallel::degrees;
  std::vector<parallel::ParallelOptions> all = {degrees(1, false, 2, 1, 1, 1), degrees(1, false, 3, 1, 1, 1),
                                                degrees(1, false, 2, 1, 1, 2), degrees(2, false, 2, 1, 1, 1)};
  if (parts == 2) {  // a third of four rows cannot be divided
    for (const auto& more :
         {degrees(1, false, 2, 1, 2, 1), degrees(1, false, 2, 2, 1, 1), degrees(1, false, 2, 1, 1, 1, 2)})
      all.push_back(more);
  }
  for (parallel::ParallelOptions& each : all) each.num_pipeline_patch = parts;
  return all;
}

std::vector<parallel::ParallelOptions> displaced_layouts(int64_t parts) {
  std::vector<parallel::ParallelOptions> all = {{}, parallel::degrees(1, false, 1, 1, 1, 2)};
  for (parallel::ParallelOptions& each : all) each.displaced_patch_degree = parts;
  return all;
}

}  // namespace

std::vector<at::Tensor> latents_of_rank_loops(const DenoiserLoop& loop,
                                              const std::vector<parallel::ParallelOptions>& layouts) {
  std::vector<at::Tensor> results(layouts.size());
  const models::LatentShape latent_shape{loop.latents.size(2), loop.latents.size(3), 8};
  const int64_t steps = loop.make_sampler()->steps();
  comm::run_ranks_as_threads(layouts.front().degrees(), [&](comm::World world) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      parallel::Workload workload = workload_of(loop.shape, latent_shape);
      workload.steps = steps;
      workload.pictures = loop.latents.size(0);
      workload.guided = loop.guidance.is_guided();
      const parallel::Ranks ranks(world, parallel::resolve_layout(layouts[i], workload, std::nullopt));
      const at::Tensor own = run_loop(loop, ranks);
      if (world.rank() == 0) results[i] = own;
    }
  });
  return results;
}

at::Tensor latents_of_rank_loop(const DenoiserLoop& loop, const parallel::ParallelOptions& layout) {
  return latents_of_rank_loops(loop, {layout}).front();
}

void expect_exact_methods(const DenoiserLoop& loop, int64_t ranks) {
  const std::vector<parallel::ParallelOptions> all = exact_layouts(ranks, loop.shape.heads);
  const at::Tensor expected = latents_of_rank_loop(loop);
  const std::vector<at::Tensor> results = latents_of_rank_loops(loop, all);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(deviation_from(results[i], expected), 1e-4) << parallel::degrees_text(all[i]);
}

void expect_stale_oracle(const std::string& way, const DenoiserLoop& loop,
                         const std::map<std::string, at::Tensor>& golden, const at::Tensor& fresh) {
  for (const int64_t parts : {2, 3}) {
    const at::Tensor& expected = golden.at(fmt::format("loop.{}.{}", way, parts));
    EXPECT_GE(deviation_from(expected, fresh), 1e-1);
    for (parallel::ParallelOptions options :
         way == "pipefusion" ? pipefusion_layouts(parts) : displaced_layouts(parts)) {
      options.warmup_steps = 1;
      EXPECT_LE(deviation_from(latents_of_rank_loop(loop, options), expected), 1e-4)
          << way << " " << parts << ", " << parallel::degrees_text(options);
    }
  }
}

double deviation_from(const at::Tensor& x, const at::Tensor& expected) {
  return ((x - expected).abs().max() / expected.std()).item<double>();
}

}  // namespace tessera::engine
