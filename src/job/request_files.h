// Reads what a command line names instead of saying it.
#pragma once

#include "job/arguments.h"

namespace tessera::job {

// Returns the arguments with the prompts of their --prompt-file, whose lines are prompts unless they are
// empty; "-" is standard input. Fields that are not given take the values of their --request. Throws Error.
GenerateArguments with_files(const GenerateArguments& arguments);

}  // namespace tessera::job
