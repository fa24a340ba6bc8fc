// How users want a run to be spread over ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "parallel/displaced_mode.h"
#include "parallel/grid.h"

namespace tessera::parallel {

enum class SplitScheme { k1d, k2d };

// The requested layout, with xDiT's names. resolve_layout() chooses what is left out.
struct ParallelOptions {
  std::optional<int64_t> nproc;
  int64_t data_parallel_degree = 1;
  bool use_cfg_parallel = false;
  int64_t pipefusion_parallel_degree = 1;
  int64_t ring_degree = 1;
  int64_t kv_gather_degree = 1;
  int64_t ulysses_degree = 1;
  int64_t displaced_patch_degree = 1;
  int64_t tensor_parallel_degree = 1;
  std::vector<double> rank_shares;  // of the work, by rank of the world; empty: equal
  std::optional<SplitScheme> split_scheme;
  std::optional<bool> dynamic_sequence_parallel;  // in place of Ulysses
  std::optional<int64_t> num_pipeline_patch;
  std::optional<GridAxis> pipeline_patch_axis;
  std::optional<DisplacedMode> displaced_mode;
  std::optional<int64_t> warmup_steps;         // of PipeFusion or of displaced patches
  std::vector<int64_t> attn_layer_num_for_pp;  // blocks of each stage; empty: balanced
  std::optional<bool> text_encoder_parallel;
  std::optional<bool> vae_parallel;
  bool simulate_ranks = false;  // one rank computes what all ranks would, one after the other

  int64_t degrees() const;  // the product, at most the largest int64_t
  int64_t cfg_degree() const { return use_cfg_parallel ? 2 : 1; }
  int64_t sequence_degree() const { return ring_degree * kv_gather_degree * ulysses_degree; }
  bool operator==(const ParallelOptions&) const = default;
};

const Fields<ParallelOptions>& parallel_fields();
// Whether check_fields() would accept the numbers, told without an exception or a text.
bool are_in_range(const ParallelOptions& options);

// The degrees that may be any number of ranks. Guidance has at most two: `use_cfg_parallel`.
struct Degree {
  const char* name;
  int64_t ParallelOptions::*value;
  const char* help;
};
inline constexpr Degree kDegrees[] = {
    {"data_parallel_degree", &ParallelOptions::data_parallel_degree,
     "Data parallelism: replicas that divide the images [1]"},
    {"pipefusion_parallel_degree", &ParallelOptions::pipefusion_parallel_degree,
     "PipeFusion: stages that divide the blocks [1]"},
    {"ring_degree", &ParallelOptions::ring_degree, "Ring Attention: ranks that divide the rows [1]"},
    {"kv_gather_degree", &ParallelOptions::kv_gather_degree,
     "Gathered keys and values: ranks that divide the rows and gather the keys and values of all [1]"},
    {"ulysses_degree", &ParallelOptions::ulysses_degree,
     "Ulysses: ranks that divide the rows, and in attention the heads [1]"},
    {"displaced_patch_degree", &ParallelOptions::displaced_patch_degree,
     "DistriFusion: ranks that divide the rows and use each other's data from the previous step [1]"},
    {"tensor_parallel_degree", &ParallelOptions::tensor_parallel_degree,
     "Tensor parallelism: ranks that divide the weights of each layer [1]"}};

// The fields that give these degrees, for messages; degrees of 1 are left out: "ulysses_degree 2
// use_cfg_parallel".
std::string degrees_text(const ParallelOptions& options);

}  // namespace tessera::parallel
