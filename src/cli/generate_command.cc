#include "cli/generate_command.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <numeric>

#include "cli/field_options.h"
#include "comm/collectives.h"
#include "comm/nccl.h"
#include "comm/peer_error.h"
#include "core/device.h"
#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "engine/find_model.h"
#include "job/dry_run.h"
#include "job/job.h"
#include "job/memory_check.h"
#include "job/report.h"
#include "job/request_files.h"
#include "launch/cores.h"
#include "launch/failure.h"
#include "launch/fingerprint.h"
#include "launch/launcher.h"
#include "launch/signals.h"
#include "launch/status.h"
#include "launch/streams.h"

namespace tessera::cli {
namespace {

// More ranks on one host must be a mistake.
constexpr int64_t kMostRanks = 1024;

comm::Rendezvous with_options(comm::Rendezvous place, const job::MessageOptions& messages) {
  if (messages.timeout) place.timeout = std::chrono::milliseconds(std::llround(*messages.timeout * 1000));
  if (messages.interface) place.interface = *messages.interface;
  place.shared_memory = messages.shared_memory;
  if (messages.interface && place.shared_memory && place.local_world_size == place.world_size) {
    usage_error("--interface",
                "all ranks are on this host and share memory; leave it out, or add --no-shared-memory");
  }
  if (!place.interface.empty()) job::require_interface(place.interface);
  return place;
}

// The default is one thread where ranks share a host, otherwise libtorch's: all cores. run_job() starts the
// threads.
void wish_threads(const std::optional<int>& wish, int64_t local_ranks) {
  if (wish || local_ranks > 1) at::set_num_threads(wish.value_or(1));
}

// Pins only the threads that compute. The threads that move messages already exist, and take any idle core.
void pin_rank(const comm::Rendezvous& place) {
  if (place.local_world_size == 1) return;
  launch::pin_to(launch::share_of(launch::allowed_cores(), place.local_rank, place.local_world_size,
                                  at::get_num_threads()));
}

// Stops c10d and Gloo from reporting lost peers on stderr with stack frames, unless TORCH_CPP_LOG_LEVEL is
// set.
void silence_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) return;
  FLAGS_caffe2_log_level = 3;  // only fatal errors
  std::cerr.rdbuf(nullptr);    // where Gloo writes; nothing else here does
}

// Moves the job to the device of the rank with this number on its host.
job::Job on_local_device(job::Job job, int64_t local_rank) {
  at::Device& device = job.settings.request.device;
  device = use_device(device, local_rank);
  return job;
}

int run_alone(const job::Job& job) {
  wish_threads(job.arguments.run.threads, 1);
  comm::World world;
  launch::RankStatus status;
  job::run_job(on_local_device(job, 0), world, status, launch::interrupted, option_name);
  return 0;
}

const job::GenerateArguments& require_generate(const Command& command) {
  const auto* arguments = std::get_if<job::GenerateArguments>(&command);
  TESSERA_CHECK(arguments, "not a command line of generate");
  return *arguments;
}

// Rank 0 has refused the request and prints why.
struct RefusedByFirst {
  int exit_code;
};

// Rank 0 sends its arguments with every choice made, or this and its exit code if it failed.
constexpr const char* kFailed = "failed ";

// Reads the message of rank 0. Throws RefusedByFirst, and Error for a malformed message.
job::GenerateArguments read_request(const std::string& text) {
  if (text.starts_with(kFailed))
    throw RefusedByFirst{launch::known_exit_code(std::atoi(text.c_str() + std::strlen(kFailed)))};
  try {
    return job::read_arguments(text);
  } catch (const Error& error) {
    throw comm::PeerError(0, "sent no request: " + error.message());
  }
}

engine::ModelFiles files_of(const job::GenerateArguments& arguments) {
  return engine::find_model_files(arguments.run.model, arguments.run.config);
}

// The name in a fingerprint under which a rank says why it could not read the model.
constexpr const char* kRefusal = "refusal";

// On rank 0, throws Error(kInput) that names the first rank whose program or model differs, or which could
// not read the model; on other ranks, throws RefusedByFirst.
void require_same_fingerprints(const launch::Fingerprint& own, const std::string& model,
                               const comm::Group& world) {
  std::string found;
  launch::Fingerprint first;
  for (int64_t rank = 0; rank < world.size; ++rank) {
    const std::string text = rank == world.rank ? launch::write_fingerprint(own) : "";
    const launch::Fingerprint told = launch::read_fingerprint(comm::broadcast_bytes(text, rank, world));
    if (rank == 0) first = told;
    if (!found.empty()) continue;
    std::string differs = launch::difference(first, told);
    if (differs.empty()) continue;
    // The error of a rank that could not read the model says more than which file differs.
    if (const auto why = told.find(kRefusal); why != told.end()) differs = "refuses: " + why->second;
    found = fmt::format("rank {} {}", rank, differs);
  }
  if (found.empty()) return;
  const Error error(ErrorKind::kInput, model, found + "; all ranks need the same program and model");
  if (world.rank != 0) throw RefusedByFirst{error.exit_code()};
  throw error;
}

// Returns, on all ranks, the job of rank 0's arguments, planned from the same model by the same program.
job::Job agree(const std::function<job::GenerateArguments()>& read, const comm::Rendezvous& place,
               const comm::Group& world) {
  if (world.rank == 0) {
    job::Job job;
    try {
      job::GenerateArguments arguments = read();
      job = job::plan_job(arguments, world.size);
      job::require_outputs(job);
      const bool is_launched_here = !place.sockets.empty();  // by a process that has compared
      if (!is_launched_here) job::require_memory(job, place.local_world_size);
      arguments.request = job.settings.request;
      comm::broadcast_bytes(job::write_arguments(arguments), 0, world);
    } catch (...) {
      const launch::Failure failure = launch::current_failure();
      comm::broadcast_bytes(kFailed + std::to_string(failure.exit_code), 0, world);
      throw;
    }
    const engine::ModelFiles files = files_of(job.arguments);
    require_same_fingerprints(launch::make_fingerprint(files.folder, files.single_file),
                              files.single_file.value_or(files.folder).string(), world);
    return job;
  }
  const job::GenerateArguments arguments = read_request(comm::broadcast_bytes({}, 0, world));
  job::Job job;
  launch::Fingerprint own;
  try {
    const engine::ModelFiles files = files_of(arguments);
    own = launch::make_fingerprint(files.folder, files.single_file);
    job = job::plan_job(arguments, world.size);
  } catch (...) {
    own[kRefusal] = launch::current_failure().message;
  }
  require_same_fingerprints(own, "", world);
  return job;
}

// Reads the message options of this rank's command line. Rank 0 reports errors in it to all ranks.
job::MessageOptions own_message_options(const std::vector<std::string>& words) {
  try {
    return require_generate(parse_arguments(words)).messages;
  } catch (const Error&) {
    return {};
  }
}

// Variables that some program has left in the environment make a rank wait for others that nobody starts, so
// one rank of each host says what it waits for.
comm::World join(const comm::Rendezvous& place) {
  std::optional<launch::SayLater> notice;
  if (place.sockets.empty() && place.local_rank == 0) {
    const std::string text =
        fmt::format("[rank {}] waiting at {}:{} for the other ranks of {}, as the launcher's variables say\n",
                    place.rank, place.address, place.port, place.world_size);
    notice.emplace(text, std::chrono::seconds(5));
  }
  return comm::World::join(place);
}

// Joins the other ranks and runs the job, whose arguments rank 0 reads. `may_pin` says that the launcher has
// not chosen cores for this rank. Throws every error of this rank.
void run_as_rank(const job::MessageOptions& messages, const std::function<job::GenerateArguments()>& read,
                 comm::Rendezvous place, launch::RankStatus& status, const std::function<bool()>& cancelled,
                 bool may_pin) {
  silence_libtorch();
  if (place.local_world_size == place.world_size) place.interface = "lo";
  place = with_options(place, messages);
  // Never destroyed, because its destructor would wait for ranks that are gone.
  auto& world = *new comm::World(join(place));
  status.preparing();
  launch::end_between_steps(/*quiet=*/world.rank() != 0);
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const job::Job job = agree(read, place, world.group(all, "world"));
  wish_threads(job.arguments.run.threads, place.local_world_size);
  if (may_pin) pin_rank(place);
  job::run_job(on_local_device(job, place.local_rank), world, status, cancelled, option_name);
  launch::flush_output();
}

// Runs as one of several ranks that run_on_local_ranks() has started. Returns the exit code; the status says
// why the rank failed.
int run_as_worker(const job::Job& job, const launch::Worker& worker) {
  launch::RankStatus& status = worker.status();
  comm::prepare_nccl();
  const auto read = [&] { return job.arguments; };
  try {
    run_as_rank(
        job.arguments.messages, read, worker.rendezvous, status, [&] { return worker.statuses.must_end(); },
        /*may_pin=*/true);
    return 0;
  } catch (const RefusedByFirst&) {
    status.failed({static_cast<int>(ErrorKind::kPeer), "rank 0 refused the request", 0});
    return static_cast<int>(ErrorKind::kPeer);
  } catch (...) {
    const launch::Failure failure = launch::current_failure();
    status.failed(failure);
    return failure.exit_code;
  }
}

int run_on_local_ranks(const job::Job& job) {
  if (job.ranks() > kMostRanks)
    usage_error("--nproc", "{} ranks on one host, at most {}", job.ranks(), kMostRanks);
  comm::Rendezvous common;
  common.interface = "lo";
  common = with_options(common, job.arguments.messages);  // finds errors before ranks start
  temporary_token();                                      // drawn once, for all ranks
  const launch::Failure failure = launch::launch_ranks(
      job.ranks(), common.timeout, [&](const launch::Worker& worker) { return run_as_worker(job, worker); });
  if (failure.exit_code == 0) return 0;
  for (const std::string& path : job.outputs) remove_unfinished_file(path);
  for (const auto& file : {job.arguments.run.report, job.arguments.run.timeline, job.arguments.run.record}) {
    if (file) remove_unfinished_file(*file);
  }
  // A progress bar may be on the terminal's last line.
  if (::isatty(STDERR_FILENO) == 1) launch::say("\r\033[K");
  return launch::print_failure(failure, option_name);
}

}  // namespace

int run_generate(const job::GenerateArguments& arguments) {
  // Standard input may be a terminal that waits for a text.
  launch::end_at_first_interrupt();
  const job::GenerateArguments whole = job::with_files(arguments);
  launch::end_between_steps(/*quiet=*/false);
  const job::Job job = [&] {
    const ComputesAlone alone;  // the ranks that it plans may be forks of this process
    job::Job planned = job::plan_job(whole, std::nullopt);
    job::require_outputs(planned);
    if (!planned.arguments.run.dry_run) job::require_memory(planned, planned.ranks());
    return planned;
  }();
  if (job.arguments.run.dry_run) {
    wish_threads(job.arguments.run.threads, job.ranks());  // the headline names them
    job::print_plan(job, option_name);
    return 0;
  }
  return job.ranks() == 1 ? run_alone(job) : run_on_local_ranks(job);
}

// Exits without cleanup, which would wait for other ranks.
void run_generate_as_rank(const std::vector<std::string>& words, const comm::Rendezvous& place) {
  launch::RankStatus status;
  int exit_code = 0;
  launch::end_at_first_interrupt();
  comm::prepare_nccl();
  const auto read = [&] {
    const job::GenerateArguments arguments = require_generate(parse_arguments(words));
    if (arguments.run.dry_run)
      usage_error(
          field("dry_run"),
          "one process prints the plan for all ranks; leave out the launcher, and give --nproc or degrees");
    return job::with_files(arguments);
  };
  try {
    // The launcher may have chosen cores for its ranks already.
    run_as_rank(own_message_options(words), read, place, status, launch::interrupted,
                launch::all_cores_allowed());
  } catch (const RefusedByFirst& refused) {
    exit_code = refused.exit_code;
  } catch (...) {
    launch::Failure failure = launch::current_failure();
    // All ranks end where rank 0 ends, which says so.
    if (failure.exit_code == launch::kInterrupted && place.rank != 0) ::_exit(failure.exit_code);
    // Where a peer is at fault, its rank stands first.
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
