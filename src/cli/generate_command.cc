#include "cli/commands.h"

#include <unistd.h>

#include "cli/run_plan.h"
#include "comm/nccl.h"
#include "core/error.h"
#include "core/host.h"
#include "job/dry_run.h"
#include "job/memory_check.h"
#include "job/progress.h"
#include "job/ranks.h"
#include "job/request_files.h"
#include "launch/aside.h"
#include "launch/cores.h"
#include "launch/failure.h"
#include "launch/signals.h"

namespace tessera::cli {
namespace {

// The message options of this rank's command line. Rank 0 reports errors in it to all ranks.
job::MessageOptions own_message_options(const std::function<job::GenerateArguments()>& arguments) {
  try {
    return arguments().messages;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

int run_generate(const job::GenerateArguments& arguments) {
  // Standard input may be a terminal that waits for text, and planning takes time.
  launch::end_at_first_interrupt();
  job::GenerateArguments whole;
  try {
    whole = with_plan(job::with_files(arguments));
  } catch (const launch::FailedAside& failed) {
    return launch::print_failure(failed.failure, option_name);
  }
  launch::end_between_steps(/*quiet=*/false);
  const job::Job job = [&] {
    const ComputesAlone alone;  // the planned ranks may be forks of this process
    job::Job planned = job::plan_job(whole, std::nullopt);
    job::require_outputs(planned);
    const job::Progress progress(/*quiet=*/true, option_name);  // prints warnings
    job::require_memory(planned, planned.ranks());
    return planned;
  }();
  if (job.arguments.run.dry_run) {
    job::wish_threads(job.arguments.run.threads, job.ranks());  // the headline names them
    job::print_plan(job, option_name);
    return 0;
  }
  if (job.ranks() > 1) return job::run_on_local_ranks(job, option_name);
  job::run_alone(job, launch::interrupted, option_name);
  return 0;
}

// Exits without cleanup, which would wait for other ranks.
void run_generate_as_rank(const std::function<job::GenerateArguments()>& arguments,
                          const comm::Rendezvous& place) {
  launch::RankStatus status;
  int exit_code = 0;
  launch::end_at_first_interrupt();
  comm::prepare_nccl();
  const auto read = [&] {
    const job::GenerateArguments own = arguments();
    if (own.run.dry_run)
      usage_error(
          field("dry_run"),
          "one process prints the plan for all ranks; leave out the launcher, and give --nproc or degrees");
    refuse_plan_of_ranks(own);
    return job::with_files(own);
  };
  try {
    // The launcher may have chosen cores for its ranks already.
    job::run_as_rank(own_message_options(arguments), read, place, status, launch::interrupted,
                     launch::all_cores_allowed(), option_name);
  } catch (const job::RefusedByFirst& refused) {
    exit_code = refused.exit_code;
  } catch (...) {
    launch::Failure failure = launch::current_failure();
    // All ranks end when rank 0 ends, and rank 0 reports it.
    if (failure.exit_code == launch::kInterrupted && place.rank != 0) ::_exit(failure.exit_code);
    // If a peer is at fault, the message begins with its rank.
    failure.message =
        failure.peer ? fmt::format("{}, reported by rank {} {}", failure.message, place.rank, status.place())
        : failure.exit_code == static_cast<int>(ErrorKind::kUsage)
            ? fmt::format("[rank {}] {}", place.rank, failure.message)
            : fmt::format("[rank {}] {}, {}", place.rank, failure.message, status.place());
    exit_code = launch::print_failure(failure, option_name);
  }
  ::_exit(exit_code);
}

}  // namespace tessera::cli
