// `tessera generate`.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"
#include "comm/world.h"
#include "launch/worker.h"

namespace tessera::cli {

// Paints, writes the files, and prints their paths on stdout; starts the ranks when there are to be several.
// words: of the command line. world_size: 1 where a launcher has started one rank. Returns the exit code; the
// message of a failed rank has been printed by then. Throws Error and engine::Cancelled.
int run_generate(const GenerateArguments& arguments, const std::vector<std::string>& words,
                 std::optional<int64_t> world_size);

// As one of several ranks that a launcher started. The words of rank 0 count, whatever the others were given;
// only --timeout and --interface are of each rank's own. Ends the process.
[[noreturn]] void run_generate_as_rank(const std::vector<std::string>& words, const comm::Rendezvous& place);
// As one of several ranks that run_generate() of another process started. Ends the process; why it failed
// stands in its status.
[[noreturn]] void run_generate_as_worker(const std::vector<std::string>& words, const launch::Worker& worker);

}  // namespace tessera::cli
