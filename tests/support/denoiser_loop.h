// Runs the whole denoising loop on a tiny denoiser of tests/golden, on ranks that are threads.
#pragma once

#include <functional>
#include <map>
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
  Guidance guidance;                        // of all pictures
  at::Tensor latents;                       // what the run begins with, [N, C, h, w]
  std::vector<at::Tensor> references = {};  // [N, C, h', w'] or [1, C, h', w'] each
};

// Returns the latents after all steps, [N, C, h, w], of rank 0 with each of the layouts, which have one
// number of ranks.
std::vector<at::Tensor> latents_of_rank_loops(const DenoiserLoop& loop,
                                              const std::vector<parallel::ParallelOptions>& layouts);
at::Tensor latents_of_rank_loop(const DenoiserLoop& loop, const parallel::ParallelOptions& layout = {});

// Expects of all products of methods that are exact, on so many ranks, what one rank gives. The loop is
// guided.
void expect_exact_methods(const DenoiserLoop& loop, int64_t ranks);

// Expects what an oracle gives by the definition of PipeFusion ("pipefusion") or displaced patches
// ("displaced") after one step of warm-up: `golden` has it as loop.WAY.PARTS for two and three parts of a
// picture with four rows of tokens, and `fresh` is what one rank gives.
void expect_stale_oracle(const std::string& way, const DenoiserLoop& loop,
                         const std::map<std::string, at::Tensor>& golden, const at::Tensor& fresh);

// The largest difference, as a part of the deviation of what is expected.
double deviation_from(const at::Tensor& x, const at::Tensor& expected);

}  // namespace tessera::engine
