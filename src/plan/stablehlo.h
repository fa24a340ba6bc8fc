// A graph as a program in StableHLO, which other engines run (XLA, IREE; docs/stablehlo.md), and a
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
  int64_t rank = 0, world_size = 1;  // of a program without shardings
};

struct Program {
  std::string text;           // a module with one function, @main
  OrderedJson description;    // {"version", "model", "part", "rank", "world_size", "arguments", "results"}
  int64_t weights_bytes = 0;  // of the arguments that are weights
};

// Whether a file holds the description of a program, of whatever version.
bool is_program_description(const Json& json);

// The program of rank `rank` of the world, of which these are the graphs. Ranks that send each other messages
// have one program, of which each is a partition; they differ in which parts of weights and inputs they are
// given. Throws Error(kUsage) that names an operation which has no form.
// With a sharding, of the one graph, the program has its mesh and shardings, and the description says them:
// "mesh" has the sizes of the axes by name, and "sharding" of each argument and result the axes by dimension.
Program stablehlo_program(std::span<const Graph> world, size_t rank, const ProgramInfo& info,
                          const ProgramSharding* sharding = nullptr);

}  // namespace tessera::plan
