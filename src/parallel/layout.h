// From degrees, as flags give them, to a layout of ranks that fits a model and a request; or one error that
// names every broken rule and the nearest settings that are valid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "parallel/grid.h"
#include "parallel/mesh.h"

namespace tessera::parallel {

enum class SplitScheme { k1d, k2d };

// The wish, with the names of the flags. What is left out is chosen by resolve_layout().
struct ParallelOptions {
  std::optional<int64_t> nproc;
  int64_t data_parallel_degree = 1;
  bool use_cfg_parallel = false;
  int64_t pipefusion_parallel_degree = 1;
  int64_t ring_degree = 1;
  int64_t ulysses_degree = 1;
  int64_t tensor_parallel_degree = 1;
  std::optional<SplitScheme> split_scheme;
  std::optional<int64_t> num_pipeline_patch;
  std::optional<int64_t> warmup_steps;
  std::vector<int64_t> attn_layer_num_for_pp;  // blocks of each stage; empty: balanced
  std::optional<bool> text_encoder_parallel;
  bool simulate_ranks = false;  // one rank does what all would, one after the other

  int64_t degrees() const;  // product
};

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
  int64_t steps = 1;
  int64_t pictures = 1;
  bool guided = true;  // guidance scale above 1
};

struct Layout {
  PerAxis sizes{1};
  std::vector<int64_t> stage_blocks;  // blocks of each stage, all of them one after another
  GridAxis axis = GridAxis::kRows;    // that tokens are split along
  int64_t patches = 1;                // of PipeFusion
  int64_t warmup_steps = 0;
  bool text_encoder_parallel = true;  // over the ranks of a replica; else each holds all of it

  Range stage(int64_t rank) const;  // blocks of a rank of the pipeline
};

// Throws Error(kUsage): one line with every broken rule and the nearest valid settings.
// `world_size`: ranks that were started, where a launcher started them.
Layout resolve_layout(const ParallelOptions& options, const Workload& workload,
                      std::optional<int64_t> world_size);

// The flags that give these degrees, without those of degree 1: "--ulysses-degree 2 --use-cfg-parallel".
std::string degree_flags(const ParallelOptions& options);

// m x n = `degree` with m <= n as near to each other as can be; m = 1 for a prime.
std::pair<int64_t, int64_t> near_square(int64_t degree);

}  // namespace tessera::parallel
