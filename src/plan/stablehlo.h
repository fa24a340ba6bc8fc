// A graph as a program in StableHLO, which other engines run (XLA, IREE; docs/stablehlo.md), and a
// description of its arguments and results.
#pragma once

#include <string>

#include "core/json.h"
#include "plan/graph.h"

namespace tessera::plan {

struct ProgramInfo {
  std::string model;  // the class of the pipeline
  std::string part;   // "denoiser", "text_encoder" or "decoder"
  int64_t rank = 0, world_size = 1;
};

struct Program {
  std::string text;         // a module with one function, @main
  OrderedJson description;  // {"version", "model", "part", "rank", "world_size", "arguments", "results"}
};

// Throws Error(kUsage) that names an operation which has no form.
Program stablehlo_program(const Graph& graph, const ProgramInfo& info);

}  // namespace tessera::plan
