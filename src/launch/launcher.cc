#include "launch/launcher.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <new>

#include "core/error.h"
#include "core/system_call.h"
#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

[[noreturn]] void launcher_cannot(const std::string& what, int reason) {
  throw Error(ErrorKind::kPeer, "launcher", fmt::format("cannot {}: {}", what, system_reason(reason)));
}

// Pairs of connected sockets, created when the first rank of a pair is started.
class Sockets {
 public:
  // Returns the sockets of `rank` to all other ranks. Must be called in the order of the ranks.
  std::map<int64_t, Descriptor> of(int64_t rank, int64_t ranks) {
    for (int64_t peer = rank + 1; peer < ranks; ++peer) {
      std::array<int, 2> pair = {};
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
        launcher_cannot(fmt::format("connect rank {} with rank {} of {}", rank, peer, ranks), errno);
      ends_[rank].emplace(peer, Descriptor(pair[0]));
      ends_[peer].emplace(rank, Descriptor(pair[1]));
    }
    const auto own = ends_.extract(rank);
    return own ? std::move(own.mapped()) : std::map<int64_t, Descriptor>();
  }

  // Closes the sockets of ranks that have not been started yet.
  void close() { ends_.clear(); }

 private:
  std::map<int64_t, std::map<int64_t, Descriptor>> ends_;  // by rank and peer
};

// Closes the ends that belong to ranks that are started later: the peers of a rank notice its death only if
// no other process holds its ends.
[[noreturn]] void run_fork(const Worker& worker, pid_t launcher, Sockets& sockets,
                           const std::function<int(const Worker&)>& run) noexcept {
  sockets.close();
  become_worker(worker, launcher);
  ::_exit(run(worker));
}

}  // namespace

Failure launch_ranks(int64_t ranks, std::chrono::milliseconds timeout,
                     const std::function<int(const Worker&)>& run) {
  StatusTable statuses(ranks);
  const Descriptor store(::memfd_create("tessera-store", MFD_CLOEXEC));
  if (store.number() < 0) launcher_cannot("create a memory file", errno);
  const pid_t launcher = ::getpid();
  const BlockedSignals signals;
  Supervisor supervisor(statuses, timeout, signals);
  try {
    Sockets sockets;
    std::fflush(nullptr);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::map<int64_t, Descriptor> own = sockets.of(rank, ranks);
      comm::Rendezvous place;
      place.rank = place.local_rank = rank;
      place.world_size = place.local_world_size = ranks;
      place.store_file = store.number();
      for (const auto& [peer, socket] : own) place.sockets[peer] = socket.number();
      const pid_t process = ::fork();
      if (process < 0 && errno == ENOMEM) throw std::bad_alloc();
      if (process < 0 && errno == EAGAIN) {
        throw Error(
            ErrorKind::kMemory, "launcher",
            fmt::format("cannot start rank {} of {} within the limit on processes (ulimit -u, or of a "
                        "container): {}",
                        rank, ranks, system_reason(errno)));
      }
      if (process < 0) launcher_cannot(fmt::format("start rank {} of {}", rank, ranks), errno);
      if (process == 0) run_fork({.rendezvous = place, .statuses = statuses}, launcher, sockets, run);
      supervisor.add(process);
    }
  } catch (...) {
    supervisor.end_all();
    throw;
  }
  return supervisor.run();
}

}  // namespace tessera::launch
