// Plans a run of `tessera generate` before its ranks start: a plan chooses its layout, or tells what the one
// that was given takes.
#pragma once

#include <string>

#include "job/arguments.h"

namespace tessera::cli {

// Whether layouts may work with activations of earlier steps, as a text says it: "none", "any", or a number
// of steps. Throws Error(kUsage).
bool allows_stale(const std::string& text);

// Throws Error(kUsage) for options that say the same as --parallel, or need it.
void require_plan_options(const Json& given);

// Throws Error(kUsage) for a rank that a launcher has started: a plan is made for ranks of this host that
// this program starts.
void refuse_plan_of_ranks(const job::GenerateArguments& arguments);

// Returns the arguments with the layout that --parallel auto chooses and with what is predicted of the run,
// if that or --machine is given, and says so in a line. May measure this host, for seconds. Must be called
// while this is the only thread. Throws Error and launch::FailedAside.
job::GenerateArguments with_plan(job::GenerateArguments arguments);

}  // namespace tessera::cli
