// A rank that this program started itself: what it inherits from its launcher.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"
#include "launch/status.h"

namespace tessera::launch {

// The environment variable in which a launcher tells a rank its place.
inline constexpr const char* kWorkerVariable = "TESSERA_WORKER";

struct WorkerPlace {
  int64_t rank = 0, ranks = 1;
  pid_t parent = 0;
  // Descriptors, the sockets by the rank at their other end.
  int status_file = -1, store_file = -1;
  std::map<int64_t, int> sockets = {};
  std::string file_token = {};  // for the names of temporary files
};

// As the variable's text, and back: Error(kUsage) when it is not from write_worker_place().
std::string write_worker_place(const WorkerPlace& place);
WorkerPlace read_worker_place(const std::string& text);

// This process as a rank.
struct Worker {
  comm::Rendezvous rendezvous;
  std::shared_ptr<StatusTable> statuses;

  RankStatus& status() const { return statuses->rank(rendezvous.rank); }
};

// Nothing when no launcher of this program started this process. Otherwise binds it to that: it dies with its
// parent, which alone decides what becomes of signals from the terminal. Takes the variable away, so that it
// is to be called before there are threads. Throws Error(kUsage) or Error(kPeer) when the variable is not a
// launcher's.
std::optional<Worker> take_worker_place();

}  // namespace tessera::launch
