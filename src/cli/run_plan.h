// Plans a run of `tessera generate` before its ranks start: a plan chooses its layout, or predicts the given
// one.
#pragma once

#include <string>

#include "job/arguments.h"

namespace tessera::cli {

// Returns whether layouts may work with activations of earlier steps, from a text: "none", "any", or a number
// of steps. Throws Error(kUsage).
bool allows_stale(const std::string& text);

// Throws Error(kUsage) for options that contradict --parallel, or that need it.
void require_plan_options(const Json& given);

// Throws Error(kUsage) for a rank started by a launcher: only ranks that this program starts on this host can
// be planned.
void refuse_plan_of_ranks(const job::GenerateArguments& arguments);

// Returns the arguments with the layout that --parallel auto chooses and with the prediction for the run, if
// --parallel auto or --machine is given, and prints a line about it. May measure this host for some seconds.
// Must be called while this is the only thread. Throws Error and launch::FailedAside.
job::GenerateArguments with_plan(job::GenerateArguments arguments);

}  // namespace tessera::cli
