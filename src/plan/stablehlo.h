// Writes a graph as a program in StableHLO, which other engines run (XLA, IREE; docs/stablehlo.md), and a
// description of its arguments and results.
#pragma once

#include <span>
#include <string>

#include "core/json.h"
#include "plan/graph.h"
#include "plan/stablehlo_sharding.h"

namespace tessera::plan {

struct ProgramInfo {
  std::string model;                 // the class of the pipeline
  std::string part;                  // "denoiser", "text_encoder" or "decoder"
  std::string dtype;                 // of the run
  int64_t rank = 0, world_size = 1;  // for a program without shardings
};

struct Program {
  std::string text;           // a module with a single function, @main
  OrderedJson description;    // {"version", "model", "part", "rank", "world_size", "arguments", "results"}
  int64_t weights_bytes = 0;  // for the arguments that are weights
};

// Whether a file holds the description of a program, of any version.
bool is_program_description(const Json& json);

// The program of rank `rank`; `world` has the graphs of all ranks. Ranks that exchange messages share a
// program, of which each is a partition; they differ only in the parts of weights and inputs that they get.
// Throws Error(kUsage) naming an operation that cannot be expressed.
// With a sharding of the only graph, the program contains its mesh and shardings, and so does the
// description: "mesh" has the sizes of the axes by name, and the "sharding" of each argument and result has
// the axes by dimension.
Program stablehlo_program(std::span<const Graph> world, size_t rank, const ProgramInfo& info,
                          const ProgramSharding* sharding = nullptr);

}  // namespace tessera::plan
