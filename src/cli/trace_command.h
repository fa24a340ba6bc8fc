// `tessera trace`: what each rank of a run would do, from shapes alone.
#pragma once

#include <optional>
#include <string>

#include "cli/generate_arguments.h"

namespace tessera::cli {

struct TraceArguments {
  GenerateArguments run;            // without prompts: the longest that the model takes
  std::optional<std::string> rank;  // a number, or "all"
  std::optional<std::string> output;
};
const Fields<TraceArguments>& trace_fields();

// Throws Error.
void run_trace(const TraceArguments& arguments);

}  // namespace tessera::cli
