// What a program in StableHLO does, as a trace of one step, which plan/views.h turns into tables.
//
// Lines of a program of ours that are one product of the engine are one event, with the shapes of the
// engine's trace, and so are those of one of its collectives. Every other line is an event under its name in
// StableHLO, as are all lines of other programs; constants are not events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plan/trace.h"

namespace tessera::plan {

// Reads a program and follows it on one partition, 0 by default, from its main function on: what a function
// does counts for each of its calls, and the body of a loop as often as it runs, which must be a constant.
// Roles are those in the locations of a program of ours or of JAX, and otherwise the name of the function.
// Throws Error(kInput) as read_stablehlo() does, and Error(kUsage) for a partition that it does not have.
// `where` names the file.
Trace trace_program(std::string_view text, const std::string& where, std::optional<int64_t> rank);

}  // namespace tessera::plan
