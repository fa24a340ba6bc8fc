// Ctrl-C and its relatives.
#pragma once

namespace tessera::cli {

// The first SIGINT asks the run to end (see interrupted()); a second one, SIGTERM and SIGHUP end the program
// at once. Either way nothing half-written stays behind and the exit code is 128 + the signal. Also lets a
// write beyond a file size limit fail instead of ending the program.
void install_signal_handlers();

// True after the first SIGINT.
bool interrupted();

}  // namespace tessera::cli
