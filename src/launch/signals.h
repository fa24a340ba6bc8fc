// Handling of SIGINT (Ctrl-C), SIGTERM and the other signals that end a program.
#pragma once

#include <vector>

namespace tessera::launch {

class RankStatus;

// The signals that end a run at once: all that end a program by default and come from outside, such as
// SIGTERM, SIGHUP, SIGUSR1 (which schedulers send before a time limit) and SIGXCPU. Signals that the caller
// has this program ignore, as nohup does with SIGHUP, and those that a library listens to are left out; so
// are SIGINT, SIGPIPE and what reports a fault.
std::vector<int> ending_signals();

// The first SIGINT asks the run to end (see interrupted()). A second one, and the ending_signals(), end the
// program at once, with the exit code 128 + the signal. Either way no half-written file stays behind, nor
// after a write to a closed pipe. A write beyond a file size limit fails instead of ending the program.
// SIGBUS, because a file of weights was cut off while it was mapped, ends it with one line and the exit code
// of Error(kInput). SIGSEGV where no more memory is to be had, because libraries use what they were refused,
// ends it so with the code of Error(kMemory).
void install_signal_handlers();

// True after the first SIGINT.
bool interrupted();

// What is finished after it, as say_end() names it: a literal, "this step" unless another is given.
void finish_before_end(const char* unit);
// Tells standard error that the first SIGINT has come. Safe in a signal handler.
void say_end();

// For a rank that another process supervises, which prints why the rank ended: the rank prints nothing, and
// reports SIGBUS and SIGSEGV in `status`, which must live as long as the process. A terminal sends SIGINT,
// SIGQUIT and SIGHUP to both, and the supervisor decides what the rank does, so the rank ignores them. It
// unblocks all signals, and a write to a closed pipe fails instead of ending the rank.
void leave_signals_to_parent(RankStatus& status);

// For a rank of another launcher that has not joined the others yet, and for work without steps: the first
// SIGINT ends it at once.
void end_at_first_interrupt();
// When they have: the first SIGINT is for interrupted() again, a second one ends the rank at once. A launcher
// sends it to all ranks; one that is `quiet` leaves it to another to say so.
void end_between_steps(bool quiet);

}  // namespace tessera::launch
