#include "launch/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "launch/signals.h"

namespace tessera::launch {
namespace {

constexpr int64_t kMostRanks = 1 << 16, kMostNumber = 1 << 30;  // of descriptors and processes
constexpr int kParentEnds = SIGUSR1;                            // the program uses it for nothing else

// Marks the descriptor close-on-exec, so that neither children nor executed programs inherit it.
int owned(int descriptor) {
  if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
    usage_error(kWorkerVariable, "is set by the program for its own ranks; descriptor {} is not open",
                descriptor);
  return descriptor;
}

// Ranks share the descriptor, and with it a position; the file opened by its name has one of its own.
std::string read_request(int descriptor) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  std::string text = read_file(fmt::format("/proc/self/fd/{}", owned(descriptor)), kMost);
  ::close(descriptor);
  return text;
}

std::atomic<pid_t> parent_of_rank{0};

// The kernel means the thread that started this process. Where that alone has ended, another thread of the
// same process is the parent now, and its end is signalled in turn.
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
  if (::getppid() != parent) ::_exit(128 + SIGKILL);  // it was gone before
}

std::string write_worker_place(const WorkerPlace& place) {
  Json sockets = Json::array();
  for (const auto& [peer, socket] : place.sockets) {
    sockets.push_back(peer);
    sockets.push_back(socket);
  }
  return Json{{"rank", place.rank},          {"ranks", place.ranks},          {"parent", place.parent},
              {"status", place.status_file}, {"store", place.store_file},     {"request", place.request_file},
              {"sockets", sockets},          {"file_token", place.file_token}}
      .dump();
}

WorkerPlace read_worker_place(const std::string& text) {
  try {
    const JsonConfig values(parse_json(text, kWorkerVariable), kWorkerVariable);
    const auto number = [&](int64_t value) {
      if (value < 0 || value > kMostNumber) input_error(kWorkerVariable, "{} is out of range", value);
      return static_cast<int>(value);
    };
    WorkerPlace place;
    place.ranks = values.count("ranks", kMostRanks);
    place.rank = values.integer("rank");
    place.parent = number(values.integer("parent"));
    place.status_file = number(values.integer("status"));
    place.store_file = number(values.integer("store"));
    place.request_file = number(values.integer("request"));
    place.file_token = values.string("file_token");
    const std::vector<int64_t> sockets = values.integers("sockets");
    for (size_t i = 0; i + 1 < sockets.size(); i += 2) place.sockets[sockets[i]] = number(sockets[i + 1]);
    // There must be one for each other rank.
    bool whole = sockets.size() % 2 == 0 && place.rank >= 0 && place.rank < place.ranks &&
                 static_cast<int64_t>(place.sockets.size()) == place.ranks - 1;
    for (const auto& [peer, socket] : place.sockets)
      whole = whole && peer >= 0 && peer < place.ranks && peer != place.rank;
    if (!whole) input_error(kWorkerVariable, "there is no socket for each other rank");
    return place;
  } catch (const Error& error) {
    usage_error(kWorkerVariable, "is set by the program for its own ranks: {}", error.message());
  }
}

std::optional<Worker> take_worker_place() {
  const char* text = std::getenv(kWorkerVariable);
  if (!text) return std::nullopt;
  const WorkerPlace place = read_worker_place(text);
  ::unsetenv(kWorkerVariable);
  die_with_parent(place.parent);
  ::prctl(PR_SET_NAME, fmt::format("tessera:{}", place.rank).c_str());
  set_temporary_token(place.file_token);
  Worker worker;
  worker.statuses = std::make_shared<StatusTable>(comm::Descriptor(owned(place.status_file)), place.ranks);
  comm::Rendezvous& rendezvous = worker.rendezvous;
  rendezvous.rank = rendezvous.local_rank = place.rank;
  rendezvous.world_size = rendezvous.local_world_size = place.ranks;
  rendezvous.store_file = owned(place.store_file);
  worker.request = read_request(place.request_file);
  for (const auto& [peer, socket] : place.sockets) rendezvous.sockets[peer] = owned(socket);
  leave_signals_to_parent(worker.status());
  return worker;
}

}  // namespace tessera::launch
