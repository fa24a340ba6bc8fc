#include "launch/launcher.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

#include "comm/descriptor.h"
#include "core/error.h"
#include "core/file.h"
#include "core/random_name.h"
#include "launch/supervisor.h"
#include "launch/worker.h"

namespace tessera::launch {
namespace {

using comm::Descriptor;

[[noreturn]] void launcher_cannot(const std::string& what, int reason) {
  throw Error(ErrorKind::kPeer, "launcher",
              fmt::format("cannot {}: {}", what, std::generic_category().message(reason)));
}

// Every two ranks share a socket; many ranks need more descriptors than most shells allow initially.
void allow_many_descriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
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

 private:
  std::map<int64_t, std::map<int64_t, Descriptor>> ends_;  // by rank and peer
};

// Owns the file actions of posix_spawn.
class SpawnActions {
 public:
  SpawnActions() { ::posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  // Lets the child inherit the descriptor under the same number, which is free there.
  void inherit(int descriptor) { ::posix_spawn_file_actions_adddup2(&actions_, descriptor, descriptor); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_with(const std::string& variable) {
  std::vector<std::string> all;
  for (char** text = environ; *text; ++text) {
    if (!std::string_view(*text).starts_with(std::string(kWorkerVariable) + "=")) all.emplace_back(*text);
  }
  all.push_back(variable);
  return all;
}

pid_t start(const WorkerPlace& place, const std::vector<std::string>& words) {
  SpawnActions actions;
  actions.inherit(place.status_file);
  actions.inherit(place.store_file);
  actions.inherit(place.request_file);
  for (const auto& [peer, socket] : place.sockets) actions.inherit(socket);
  std::vector<std::string> arguments = {"tessera"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<std::string> environment =
      environment_with(fmt::format("{}={}", kWorkerVariable, write_worker_place(place)));
  pid_t process = -1;
  const int error = ::posix_spawn(&process, "/proc/self/exe", actions.get(), nullptr,
                                  pointers(arguments).data(), pointers(environment).data());
  if (error != 0) launcher_cannot(fmt::format("start rank {} of {}", place.rank, place.ranks), error);
  return process;
}

}  // namespace

Launched launch_ranks(int64_t ranks, std::chrono::milliseconds timeout, const std::vector<std::string>& words,
                      const std::string& request) {
  allow_many_descriptors();
  StatusTable statuses(ranks);
  const Descriptor store(::memfd_create("tessera-store", MFD_CLOEXEC));
  const Descriptor request_file(::memfd_create("tessera-request", MFD_CLOEXEC));
  if (store.number() < 0 || !write_to_descriptor(request_file.number(), std::as_bytes(std::span(request))))
    launcher_cannot("create a memory file", errno);
  const std::string token = random_name(2);
  const BlockedSignals signals;
  Supervisor supervisor(statuses, timeout, signals);
  try {
    Sockets sockets;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::map<int64_t, Descriptor> own = sockets.of(rank, ranks);
      WorkerPlace place{.rank = rank,
                        .ranks = ranks,
                        .parent = ::getpid(),
                        .status_file = statuses.file(),
                        .store_file = store.number(),
                        .request_file = request_file.number(),
                        .file_token = token};
      for (const auto& [peer, socket] : own) place.sockets[peer] = socket.number();
      supervisor.add(start(place, words));
    }
  } catch (...) {
    supervisor.end_all();
    throw;
  }
  return {supervisor.run(), token};
}

}  // namespace tessera::launch
