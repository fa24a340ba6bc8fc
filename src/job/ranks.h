// How the ranks of a job start or meet, agree on it, and run it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "comm/world.h"
#include "core/error.h"
#include "job/job.h"
#include "launch/status.h"

namespace tessera::job {

// Thrown by run_as_rank() on other ranks than rank 0, which has refused the request and prints why.
struct RefusedByFirst {
  int exit_code;
};

// Chooses the threads with which this rank computes: the `wish`, else one where ranks share a host, else
// libtorch's, all cores. run_job() starts them.
void wish_threads(const std::optional<int>& wish, int64_t local_ranks);

// Runs a job of one rank in this process. Throws as run_job().
void run_alone(const Job& job, const std::function<bool()>& cancelled, const FieldSpelling& spelling);

// Starts the ranks of a job as forks of this process, which must not have computed with several threads, and
// waits for them. Returns the exit code; the message of a failed rank is already printed. Throws Error if
// they cannot start.
int run_on_local_ranks(const Job& job, const FieldSpelling& spelling);

// Joins the other ranks at `place`, agrees with them on the job, whose arguments rank 0 reads, and runs it.
// All of them must call it. `messages` are this rank's own. `may_pin` says that the launcher has not chosen
// cores for this rank. Throws RefusedByFirst, and every error of this rank; other ranks may then wait, so
// that the process must end without destroying what is shared.
void run_as_rank(const MessageOptions& messages, const std::function<GenerateArguments()>& read,
                 comm::Rendezvous place, launch::RankStatus& status, const std::function<bool()>& cancelled,
                 bool may_pin, const FieldSpelling& spelling);

}  // namespace tessera::job
