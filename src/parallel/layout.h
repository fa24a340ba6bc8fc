// From degrees, as users give them, to a layout of ranks that fits a model and a request; or one error that
// names every broken rule and the nearest settings that are valid.
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

// What the rules ask about the model and the request.
struct Workload {
  int64_t heads = 1;
  int64_t blocks = 1;
  // What the first and the last stage of a pipeline have to do beside blocks, in units of a block.
  double embedding = 0, head = 0;
  // Rows and frames of tokens in the latents: tokens are split by whole rows, or where there are too few of
  // them by whole frames.
  int64_t token_rows = 1;
  int64_t token_frames = 1;
  int64_t row_unit = 1;          // rows that stay together
  bool has_streams = true;       // blocks can be dealt to stages
  bool has_group_norms = false;  // norms over the positions of a picture
  int64_t steps = 1;
  int64_t pictures = 1;
  bool guided = true;  // guidance scale above 1
};

struct Layout {
  PerAxis sizes{1};
  std::vector<int64_t> stage_blocks;  // blocks of each stage, all of them one after another
  GridAxis axis = GridAxis::kRows;    // that tokens are split along
  int64_t patches = 1;                // of PipeFusion
  int64_t warmup_steps = 0;           // of PipeFusion
  std::optional<Displacement> displacement = {};
  bool is_all_warmup = false;  // of either: every step, also where a sampler asks the model more often
  bool displaced_mode_was_changed = false;  // from the default, which is known to fail there
  bool text_encoder_parallel = true;        // over the ranks of a replica; else each holds all of it
  bool vae_parallel = true;                 // over the ranks of a replica; else its first one decodes alone

  Range stage(int64_t rank) const;  // blocks of a rank of the pipeline
};

// Throws Error(kUsage) for a field that is out of range, else one line with every broken rule and the nearest
// valid settings. `world_size`: ranks that were started, where a launcher started them.
Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size);

// m x n = `degree` with m <= n as near to each other as can be; m = 1 for a prime.
std::pair<int64_t, int64_t> near_square(int64_t degree);

}  // namespace tessera::parallel
