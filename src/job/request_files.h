// Reads the files that a command line names in place of options.
#pragma once

#include "job/arguments.h"

namespace tessera::job {

// Returns the arguments with the prompts of their --prompt-file, in which each nonempty line is a prompt; "-"
// is standard input. Fields that are not given take the values in their --request. Throws Error.
GenerateArguments with_files(const GenerateArguments& arguments);

}  // namespace tessera::job
