// How the ranks of a job start or meet, agree on it, and run it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "comm/world.h"
#include "core/error.h"
#include "job/job.h"
#include "launch/failure.h"
#include "launch/status.h"
#include "launch/worker.h"

namespace tessera::job {

// Thrown by run_as_rank() on ranks other than rank 0, which has refused the request and prints why.
struct RefusedByFirst {
  int exit_code;
};

// Chooses the number of threads with which this rank computes: `wish` if given; otherwise one if ranks share
// a host; otherwise libtorch's default, all cores. run_job() starts them.
void wish_threads(const std::optional<int>& wish, int64_t local_ranks);

// Pins this rank, number `rank` of `ranks` on this host, to its own cores, if there are enough for all. Only
// the threads that compute are pinned: those that move messages already exist, and take any idle core.
void pin_rank(int64_t rank, int64_t ranks);

// Moves the job to the device of the rank with this number on its host.
Job on_local_device(Job job, int64_t local_rank);

// Joins the other ranks at `place`. The world is never destroyed, because its destructor would wait for ranks
// that are gone.
comm::World& join_ranks(const MessageOptions& messages, comm::Rendezvous place, launch::RankStatus& status);

// Starts ranks as forks of this process, as launch::launch_ranks() does, and runs `run`, which may throw, in
// each. A rank counts as lost when it is stopped for longer than `most_stopped`, by default the timeout of
// messages. Throws Error if they cannot start.
launch::Failure launch_local_ranks(int64_t ranks, const MessageOptions& messages,
                                   std::optional<std::chrono::milliseconds> most_stopped,
                                   const std::function<void(const launch::Worker&)>& run);

// Runs a job of one rank in this process. Throws as run_job() does.
void run_alone(const Job& job, const std::function<bool()>& cancelled, const FieldSpelling& spelling);

// Starts the ranks of a job as forks of this process, which must not have computed with several threads, and
// waits for them. Returns the exit code; the message of a failed rank has already been printed. Throws Error
// if they cannot start.
int run_on_local_ranks(const Job& job, const FieldSpelling& spelling);

// Joins the other ranks at `place`, agrees with them on the job, whose arguments rank 0 reads, and runs it.
// All of them must call it. `messages` are this rank's own. `may_pin` says that the launcher has not chosen
// cores for this rank. Throws RefusedByFirst, and every error of this rank. Other ranks may then be waiting,
// so the process must end without destroying what they share.
void run_as_rank(const MessageOptions& messages, const std::function<GenerateArguments()>& read,
                 const comm::Rendezvous& place, launch::RankStatus& status,
                 const std::function<bool()>& cancelled, bool may_pin, const FieldSpelling& spelling);

}  // namespace tessera::job
