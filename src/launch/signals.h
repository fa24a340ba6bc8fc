// Ctrl-C and its relatives.
#pragma once

namespace tessera::launch {

// The first SIGINT asks the run to end (see interrupted()); a second one, SIGTERM and SIGHUP (unless it is
// ignored already) end the program at once. Either way nothing half-written stays behind and the exit code is
// 128 + the signal. Also lets a write beyond a file size limit fail instead of ending the program.
void install_signal_handlers();

// Whether the caller wants the run to outlive its terminal, as nohup does.
bool ignores_hangup();

// True after the first SIGINT.
bool interrupted();

// For a rank that another process watches over: a terminal sends SIGINT and SIGHUP to both, and the
// other decides what becomes of it. Takes the other signals from now on, and lets a write to a closed pipe
// fail instead of ending the rank.
void leave_interrupts_to_parent();

// For a rank that cannot ask the others: the first SIGINT ends it at once.
void end_at_first_interrupt();

}  // namespace tessera::launch
