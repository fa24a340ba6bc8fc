// A rank that this program started itself, and what it inherits from its launcher.
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

// The environment variable through which a launcher passes a rank its place.
inline constexpr const char* kWorkerVariable = "TESSERA_WORKER";

struct WorkerPlace {
  int64_t rank = 0, ranks = 1;
  pid_t parent = 0;
  // Descriptors; the sockets are indexed by the rank at their other end.
  int status_file = -1, store_file = -1, request_file = -1;
  std::map<int64_t, int> sockets = {};
  std::string file_token = {};  // for the names of temporary files
};

// Converts to the variable's text and back. Throws Error(kUsage) if the text is not from
// write_worker_place().
std::string write_worker_place(const WorkerPlace& place);
WorkerPlace read_worker_place(const std::string& text);

// Ends this process with SIGKILL when process `parent`, which started it, ends as a whole (not only the
// thread that started it); immediately if it has ended already.
void die_with_parent(pid_t parent);

// This process as a rank.
struct Worker {
  comm::Rendezvous rendezvous;
  std::shared_ptr<StatusTable> statuses;
  std::string request;  // the text that launch_ranks() got

  RankStatus& status() const { return statuses->rank(rendezvous.rank); }
};

// Returns nothing if this process was not started by a launcher of this program. Otherwise binds it to its
// launcher: it dies with its parent, which alone handles the signals from the terminal. Removes the variable
// from the environment, so call it before there are other threads. Throws Error(kUsage) or Error(kPeer) if
// the variable is not from a launcher.
std::optional<Worker> take_worker_place();

}  // namespace tessera::launch
