// Turns degrees given by users into a layout of ranks that fits a model and a request, or throws one error
// that names every broken rule and the nearest valid settings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "parallel/displaced_mode.h"
#include "parallel/grid.h"
#include "parallel/mesh.h"
#include "parallel/options.h"
#include "parallel/workload.h"

namespace tessera::parallel {

struct Layout {
  PerAxis sizes{1};
  std::vector<double> rank_shares = {};  // by rank of the world, at most 1; empty if all are equal
  std::vector<int64_t> stage_blocks;     // the number of blocks of each stage
  // The axes that the ranks of the sequence axes and the patches of PipeFusion divide.
  GridAxis rank_axis = GridAxis::kRows, patch_axis = GridAxis::kRows;
  bool dsp = false;          // instead of Ulysses, in attention within frames or along them
  int64_t patches = 1;       // of PipeFusion
  int64_t warmup_steps = 0;  // of PipeFusion
  std::optional<Displacement> displacement = {};
  // Whether the warm-up (PipeFusion's or that of displaced patches) covers every step, and thus every
  // evaluation if a sampler evaluates the model more than once per step.
  bool is_all_warmup = false;
  bool displaced_mode_was_changed = false;  // the default mode does not work here (few rows)
  bool text_encoder_parallel = true;        // split over the ranks of a replica; otherwise each rank holds it
                                            // whole
  bool vae_parallel = true;                 // done by all ranks of a replica; otherwise only by its first
                                            // rank

  // Whether no rank works with activations of an earlier step.
  bool is_exact() const { return is_all_warmup || (patches == 1 && !displacement); }
  Range stage(int64_t rank) const;  // the blocks of a rank of the pipeline
  // The shares of the members of a group along `axes`, in their order: each is the sum over all ranks with
  // the member's coordinates on these axes. All groups along the same axes therefore split in the same way,
  // which combined methods need: ranks of a ring exchange the heads that both have.
  Shares shares(std::span<const Axis> axes) const;
};

// Throws Error(kUsage) for a field that is out of range, otherwise with one line that has every broken rule
// and the nearest valid settings. `world_size` is the number of ranks if a launcher has already started them.
Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size);

}  // namespace tessera::parallel
