// What the ranks of a run divide, and how a wish divides it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/grid.h"
#include "parallel/options.h"

namespace tessera::parallel {

// The facts about the model and the request that the rules need.
struct Workload {
  int64_t heads = 1;
  int64_t blocks = 1;
  // The work of the first and the last stage of a pipeline besides its blocks, in units of one block.
  double embedding = 0, head = 0;
  // Rows and frames of tokens in the latents.
  int64_t token_rows = 1;
  int64_t token_frames = 1;
  bool axial_attention = false;  // within frames and along them only, see nn::Tokens::axial_attention()
  int64_t row_unit = 1;          // rows that stay together
  bool has_streams = true;       // blocks can be dealt to pipeline stages
  bool has_group_norms = false;  // the model has norms over all positions of an image
  int64_t steps = 1;
  int64_t pictures = 1;
  bool guided = true;         // has an unconditional branch, as with guidance scales above `unguided_scale`
  double unguided_scale = 1;  // infinite if the model runs without guidance
  // Whether the sampler may step slices of the latents separately (samplers::Sampler::is_elementwise()).
  bool has_elementwise_sampler = true;
  // Whether the branches of guidance may be combined patch by patch.
  bool has_elementwise_guidance = true;

  // The most stages of a pipeline.
  int64_t most_stages() const {
    return has_streams && has_elementwise_sampler && has_elementwise_guidance ? blocks : 1;
  }
};

// The choices for everything that a wish leaves open. All degrees must be at least 1.
struct Division {
  GridAxis patch_axis, rank_axis;
  bool dsp;              // Ulysses ranks divide frames, or places, in attention along the other axis
  int64_t units;         // of the axis of the ranks: rows that stay together, or frames
  int64_t most_patches;  // of PipeFusion, such that each has a unit for each rank that divides it
};
Division divide(const ParallelOptions& options, const Workload& workload);

// The number of blocks of each stage, at least one, so that the largest quotient of a stage's work and its
// share is as small as possible. If several stages are equally good for a block, the first one gets it.
std::vector<int64_t> balanced_stages(const Workload& workload, int64_t stages, const Shares& shares = {});

// Returns m x n = `degree` with m <= n as close to each other as possible; m is 1 for a prime.
std::pair<int64_t, int64_t> near_square(int64_t degree);

}  // namespace tessera::parallel
