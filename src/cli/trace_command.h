// `tessera trace`: what each rank of a run would do, from shapes alone.
#pragma once

#include <optional>
#include <string>

#include "job/arguments.h"

namespace tessera::cli {

struct TraceArguments {
  // Without prompts: the longest that the model takes. The model may be a denoiser alone.
  job::GenerateArguments run;
  std::optional<std::string> stablehlo;  // a file ending in .mlir
  std::optional<std::string> part;       // of the model, as a program
  std::optional<std::string> rank;       // a number, or "all"
  std::optional<std::string> output;
  bool cache = true, json = false, quiet = false;
};
const Fields<TraceArguments>& trace_fields();

// Throws Error.
void run_trace(const TraceArguments& arguments);

}  // namespace tessera::cli
