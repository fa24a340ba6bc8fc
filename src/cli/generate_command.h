// Runs `tessera generate`.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"
#include "comm/world.h"

namespace tessera::cli {

// Generates pictures, writes the files and prints their paths on stdout; starts the ranks if there are
// several. Returns the exit code; the message of a failed rank is already printed. Throws Error and
// engine::Cancelled.
int run_generate(const job::GenerateArguments& arguments);

// Runs as one of several ranks that a launcher has started. The command line of rank 0 counts, whatever the
// others have; only --timeout, --interface and --no-shared-memory are read by each rank for itself. Ends the
// process.
[[noreturn]] void run_generate_as_rank(const std::vector<std::string>& words, const comm::Rendezvous& place);

}  // namespace tessera::cli
