// How users want a run to be spread over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"
#include "parallel/displaced_mode.h"
#include "parallel/grid.h"
#include "tessera/parallel_options.h"

namespace tessera::parallel {

using tessera::ParallelOptions;
using tessera::SplitScheme;

const Fields<ParallelOptions>& parallel_fields();
// Whether check_fields() would accept the numbers, without creating an exception or a text.
bool are_in_range(const ParallelOptions& options);

// The degrees that may be any number of ranks. Guidance parallelism has at most two: `use_cfg_parallel`.
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

// The fields that set these degrees, for messages; degrees of 1 are left out: "ulysses_degree 2
// use_cfg_parallel".
std::string degrees_text(const ParallelOptions& options);

}  // namespace tessera::parallel
