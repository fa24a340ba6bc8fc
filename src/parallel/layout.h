// Turns degrees, as users give them, into a layout of ranks that fits a model and a request, or throws one
// error that names every broken rule and the nearest valid settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "parallel/displaced_mode.h"
#include "parallel/grid.h"
#include "parallel/mesh.h"
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
  bool guided = true;  // has an unconditional branch
  // Whether the sampler may step slices of the latents separately (samplers::Sampler::is_elementwise()).
  bool has_elementwise_sampler = true;
};

struct Layout {
  PerAxis sizes{1};
  std::vector<int64_t> stage_blocks;  // the number of blocks of each stage
  // The axes that the ranks of the sequence axes and the patches of PipeFusion divide.
  GridAxis rank_axis = GridAxis::kRows, patch_axis = GridAxis::kRows;
  bool dsp = false;          // instead of Ulysses, in attention within frames or along them
  int64_t patches = 1;       // of PipeFusion
  int64_t warmup_steps = 0;  // of PipeFusion
  std::optional<Displacement> displacement = {};
  // The warm-up (PipeFusion's or of displaced patches) covers every step, and so every evaluation when a
  // sampler evaluates the model more than once per step.
  bool is_all_warmup = false;
  bool displaced_mode_was_changed = false;  // the default mode fails here (few rows)
  bool text_encoder_parallel = true;        // split over the ranks of a replica; else each holds it whole
  bool vae_parallel = true;                 // done by all ranks of a replica; else by its first rank alone

  Range stage(int64_t rank) const;  // the blocks of a rank of the pipeline
};

// Throws Error(kUsage) for a field that is out of range, else one line with every broken rule and the nearest
// valid settings. `world_size` is the number of ranks if a launcher has already started them.
Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size);

// Returns m x n = `degree` with m <= n as close to each other as possible; m is 1 for a prime.
std::pair<int64_t, int64_t> near_square(int64_t degree);

}  // namespace tessera::parallel
