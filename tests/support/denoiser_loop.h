// Runs the whole denoising loop on a tiny denoiser of tests/golden, on ranks that are threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/guidance.h"
#include "models/family.h"
#include "models/local_blocks.h"
#include "parallel/layout.h"
#include "samplers/sampler.h"

namespace tessera::engine {

struct DenoiserLoop {
  std::string folder;  // of tests/golden
  models::DenoiserShape shape;
  std::function<std::unique_ptr<models::Denoiser>(const weights::Scope&, const models::LocalBlocks&)> load;
  std::function<std::unique_ptr<samplers::Sampler>()> make_sampler;
  std::vector<models::Conditioning> prompts;
  Guidance guidance;   // of all pictures
  at::Tensor latents;  // what the run begins with, [N, C, h, w]
};

// Returns the latents after all steps, [N, C, h, w], of rank 0 with each of the layouts, which have one
// number of ranks.
std::vector<at::Tensor> latents_of_rank_loops(const DenoiserLoop& loop,
                                              const std::vector<parallel::ParallelOptions>& layouts);
at::Tensor latents_of_rank_loop(const DenoiserLoop& loop, const parallel::ParallelOptions& layout = {});

// All products of methods on so many ranks that give what one rank gives, for a guided denoiser of `heads`
// heads.
std::vector<parallel::ParallelOptions> exact_layouts(int64_t ranks, int64_t heads);

// The largest difference, as a part of the deviation of what is expected.
double deviation_from(const at::Tensor& x, const at::Tensor& expected);

}  // namespace tessera::engine
