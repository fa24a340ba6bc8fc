// Handling of SIGINT (Ctrl-C), SIGTERM and the other signals that end a program.
#pragma once

#include <vector>

namespace tessera::launch {

class RankStatus;

// The signals that end a run at once: all that end a program by default and come from outside, such as
// SIGTERM, SIGHUP, SIGUSR1 (which schedulers send before a time limit) and SIGXCPU. Signals that the caller
// made this program ignore, as nohup does with SIGHUP, and those that a library listens to are left out; so
// are SIGINT, SIGPIPE and the signals of faults.
std::vector<int> ending_signals();

// The first SIGINT asks the run to end (see interrupted()). A second one, and the ending_signals(), end the
// program at once, with the exit code 128 + the signal. Either way half-written files are removed, as they
// are after a write to a closed pipe. A write beyond a file size limit fails instead of ending the program.
// SIGBUS, which occurs if a weight file was truncated while it was mapped, ends it with one line and the exit
// code of Error(kInput). SIGSEGV when memory is exhausted, because a library uses memory that it did not get,
// ends it in the same way with the code of Error(kMemory).
void install_signal_handlers();

// True after the first SIGINT.
bool interrupted();

// Sets what is still finished after the first SIGINT, as say_end() prints it: a literal, by default "this
// step".
void finish_before_end(const char* unit);
// Prints on standard error that the first SIGINT has come. Safe in a signal handler.
void say_end();

// For a rank with a supervisor, which prints why the rank ended: the rank prints nothing, and reports SIGBUS
// and SIGSEGV in `status`, which must live as long as the process. A terminal sends SIGINT, SIGQUIT and
// SIGHUP to both, and the supervisor decides what the rank does, so the rank ignores them. It unblocks all
// signals, and a write to a closed pipe fails instead of ending the rank.
void leave_signals_to_parent(RankStatus& status);

// For a rank of another launcher that has not joined the others yet, and for work without steps: the first
// SIGINT ends it at once.
void end_at_first_interrupt();
// For such a rank after it has joined: the first SIGINT is for interrupted() again, and a second one ends the
// rank at once. A launcher sends it to all ranks; a rank that is `quiet` leaves the message to another.
void end_between_steps(bool quiet);

}  // namespace tessera::launch
