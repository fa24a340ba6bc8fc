#include "launch/worker.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>

#include "launch/signals.h"

namespace tessera::launch {
namespace {

constexpr int kParentEnds = SIGUSR1;  // the program does not use it otherwise

std::atomic<pid_t> parent_of_rank{0};

// The kernel sends this at the end of the thread that started this process. If only that thread has ended,
// another thread of the same process is now the parent, and its end is signalled in turn.
void on_parent_end(int) {
  if (::getppid() != parent_of_rank) ::kill(::getpid(), SIGKILL);
}

}  // namespace

void die_with_parent(pid_t parent) {
  parent_of_rank = parent;
  struct sigaction action = {};
  action.sa_handler = on_parent_end;
  action.sa_flags = SA_RESTART;
  ::sigaction(kParentEnds, &action, nullptr);
  ::prctl(PR_SET_PDEATHSIG, kParentEnds);
  if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it was already gone
}

void die_with_only_thread(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it was already gone
}

void become_worker(const Worker& worker, pid_t launcher) {
  die_with_only_thread(launcher);
  ::prctl(PR_SET_NAME, fmt::format("tessera:{}", worker.rendezvous.rank).c_str());
  leave_signals_to_parent(worker.status());
}

}  // namespace tessera::launch
