// A rank that this program started itself, as a fork of its launcher.
#pragma once

#include <sys/types.h>

#include "comm/world.h"
#include "launch/status.h"

namespace tessera::launch {

// This process as a rank.
struct Worker {
  comm::Rendezvous rendezvous;
  StatusTable& statuses;

  RankStatus& status() const { return statuses.rank(rendezvous.rank); }
};

// Ends this process with SIGKILL when process `parent`, which started it, ends as a whole (not only the
// thread that started it); immediately if it has ended already.
void die_with_parent(pid_t parent);

// The same for a process whose parent has only the thread that started it. A stopped process ends then too,
// since it handles no signal but this one.
void die_with_only_thread(pid_t parent);

// Binds this process, a fork of `launcher`, to it: the process dies with its parent, which alone handles the
// signals from the terminal and prints why the rank failed.
void become_worker(const Worker& worker, pid_t launcher);

}  // namespace tessera::launch
