// How a run is spread over ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/api.h"

namespace tessera {

enum class GridAxis { kFrames, kRows };

enum class SplitScheme { k1d, k2d };

// What is stale in the steps of displaced patches after the synchronous ones. Halo rows, keys and values are
// stale in all modes but kFullSync.
enum class DisplacedMode {
  kFullSync,          // nothing: every step is synchronous
  kSyncGn,            // the moments of group norms are fresh
  kCorrectedAsyncGn,  // moments are stale, corrected by the change of this rank's own moments
  kStaleGn,           // moments are stale, except for this rank's own share
  kSeparateGn,        // each rank uses only its own moments
  kNoSync,            // like kSeparateGn, and everything else stays as it was at the last synchronous step
};

// The requested layout, with xDiT's names. The product of the degrees is the number of ranks. Degrees that
// are left out are chosen to fit the model and the request.
struct TESSERA_API ParallelOptions {
  std::optional<int64_t> nproc;
  int64_t data_parallel_degree = 1;
  bool use_cfg_parallel = false;
  int64_t pipefusion_parallel_degree = 1;
  int64_t ring_degree = 1;
  int64_t kv_gather_degree = 1;
  int64_t ulysses_degree = 1;
  int64_t displaced_patch_degree = 1;
  int64_t tensor_parallel_degree = 1;
  std::vector<double> rank_shares;  // the share of the work of each rank of the world; empty: equal shares
  std::optional<SplitScheme> split_scheme;
  std::optional<bool> dynamic_sequence_parallel;  // instead of Ulysses
  std::optional<int64_t> num_pipeline_patch;
  std::optional<GridAxis> pipeline_patch_axis;
  std::optional<DisplacedMode> displaced_mode;
  std::optional<int64_t> warmup_steps;         // of PipeFusion or of displaced patches
  std::vector<int64_t> attn_layer_num_for_pp;  // blocks of each stage; empty: balanced
  std::optional<bool> text_encoder_parallel;
  std::optional<bool> vae_parallel;
  bool simulate_ranks = false;  // one rank computes what all ranks would compute, one after the other

  int64_t degrees() const;  // the product, at most the largest int64_t
  int64_t cfg_degree() const { return use_cfg_parallel ? 2 : 1; }
  int64_t sequence_degree() const { return ring_degree * kv_gather_degree * ulysses_degree; }
  bool operator==(const ParallelOptions&) const = default;
};

}  // namespace tessera
