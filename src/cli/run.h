// Runs the program for a command line.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Prints results on stdout and, on failure, one line on stderr. Returns the exit code: 0 done, 1 a mistake of
// this program, 2 usage, 3 model or input file, 4 a peer was lost, 5 out of memory, 130 Ctrl-C,
// 143 SIGTERM, 129 SIGHUP, 141 closed pipe.
int run(const std::vector<std::string>& arguments) noexcept;

// Ends the program. Output is flushed but nothing is destroyed, since libtorch takes longer to destroy its
// tables of operators than a short command takes: 0.12 of 0.42 s of `tessera --version`.
[[noreturn]] void end_program(int exit_code) noexcept;

}  // namespace tessera::cli
