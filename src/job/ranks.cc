#include "job/ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>

#include "comm/collectives.h"
#include "comm/nccl.h"
#include "comm/peer_error.h"
#include "core/device.h"
#include "core/error.h"
#include "core/file.h"
#include "engine/find_model.h"
#include "job/memory_check.h"
#include "job/progress.h"
#include "launch/cores.h"
#include "launch/failure.h"
#include "launch/fingerprint.h"
#include "launch/launcher.h"
#include "launch/signals.h"
#include "launch/streams.h"

namespace tessera::job {
namespace {

// A larger number of ranks on one host must be a mistake.
constexpr int64_t kMostRanks = 1024;

comm::Rendezvous with_options(comm::Rendezvous place, const MessageOptions& messages) {
  if (messages.timeout) place.timeout = std::chrono::milliseconds(std::llround(*messages.timeout * 1000));
  if (messages.interface) place.interface = *messages.interface;
  place.shared_memory = messages.shared_memory;
  if (messages.interface && place.shared_memory && place.local_world_size == place.world_size) {
    usage_error(field("interface"), "all ranks are on this host and share memory; leave it out, or add {}",
                field("shared_memory", false));
  }
  if (!place.interface.empty()) require_interface(place.interface);
  return place;
}

// Keeps c10d and Gloo from reporting lost peers on stderr with stack frames, unless TORCH_CPP_LOG_LEVEL is
// set.
void silence_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) return;
  FLAGS_caffe2_log_level = 3;  // only fatal errors
  std::cerr.rdbuf(nullptr);    // Gloo writes here; nothing else does
}

// Rank 0 sends its arguments with every choice made, or this text and its exit code if it failed.
constexpr const char* kFailed = "failed ";

// Reads the message of rank 0. Throws RefusedByFirst, and Error for a malformed message.
GenerateArguments read_request(const std::string& text) {
  if (text.starts_with(kFailed))
    throw RefusedByFirst{launch::known_exit_code(std::atoi(text.c_str() + std::strlen(kFailed)))};
  try {
    return read_arguments(text);
  } catch (const Error& error) {
    throw comm::PeerError(0, "sent no request: " + error.message());
  }
}

engine::ModelFiles files_of(const GenerateArguments& arguments) {
  return engine::find_model_files(arguments.run.model, arguments.run.config);
}

// In a fingerprint, the name under which a rank reports why it could not read the model.
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
    // The error of a rank that could not read the model is more helpful than the name of a differing file.
    if (const auto why = told.find(kRefusal); why != told.end()) differs = "refuses: " + why->second;
    found = fmt::format("rank {} {}", rank, differs);
  }
  if (found.empty()) return;
  const Error error(ErrorKind::kInput, model, found + "; all ranks need the same program and model");
  if (world.rank != 0) throw RefusedByFirst{error.exit_code()};
  throw error;
}

// Returns, on all ranks, the job of rank 0's arguments, planned from the same model by the same program.
Job agree(const std::function<GenerateArguments()>& read, const comm::Rendezvous& place,
          const comm::Group& world, const FieldSpelling& spelling) {
  if (world.rank == 0) {
    Job job;
    try {
      GenerateArguments arguments = read();
      job = plan_job(arguments, world.size);
      require_outputs(job);
      const bool is_launched_here = !place.sockets.empty();  // by a process that has already compared
      const Progress progress(/*quiet=*/true, spelling);     // prints warnings
      if (!is_launched_here) require_memory(job, place.local_world_size);
      arguments.request = job.settings.request;
      comm::broadcast_bytes(write_arguments(arguments), 0, world);
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
  const GenerateArguments arguments = read_request(comm::broadcast_bytes({}, 0, world));
  Job job;
  launch::Fingerprint own;
  try {
    const engine::ModelFiles files = files_of(arguments);
    own = launch::make_fingerprint(files.folder, files.single_file);
    job = plan_job(arguments, world.size);
  } catch (...) {
    own[kRefusal] = launch::current_failure().message;
  }
  require_same_fingerprints(own, "", world);
  return job;
}

// If some program has left launcher variables in the environment, a rank waits for others that nobody starts;
// so one rank of each host prints what it is waiting for.
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

}  // namespace

void wish_threads(const std::optional<int>& wish, int64_t local_ranks) {
  if (wish || local_ranks > 1) at::set_num_threads(wish.value_or(1));
}

void pin_rank(int64_t rank, int64_t ranks) {
  if (ranks == 1) return;
  launch::pin_to(launch::share_of(launch::allowed_cores(), rank, ranks, at::get_num_threads()));
}

Job on_local_device(Job job, int64_t local_rank) {
  at::Device& device = job.settings.request.device;
  device = use_device(device, local_rank);
  return job;
}

comm::World& join_ranks(const MessageOptions& messages, comm::Rendezvous place, launch::RankStatus& status) {
  silence_libtorch();
  if (place.local_world_size == place.world_size) place.interface = "lo";
  auto& world = *new comm::World(join(with_options(place, messages)));
  status.preparing();
  launch::end_between_steps(/*quiet=*/world.rank() != 0);
  return world;
}

void run_alone(const Job& job, const std::function<bool()>& cancelled, const FieldSpelling& spelling) {
  wish_threads(job.arguments.run.threads, 1);
  comm::World world;
  launch::RankStatus status;
  run_job(on_local_device(job, 0), world, status, cancelled, spelling);
}

void run_as_rank(const MessageOptions& messages, const std::function<GenerateArguments()>& read,
                 const comm::Rendezvous& place, launch::RankStatus& status,
                 const std::function<bool()>& cancelled, bool may_pin, const FieldSpelling& spelling) {
  comm::World& world = join_ranks(messages, place, status);
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const Job job = agree(read, place, world.group(all, "world"), spelling);
  wish_threads(job.arguments.run.threads, place.local_world_size);
  if (may_pin) pin_rank(place.local_rank, place.local_world_size);
  run_job(on_local_device(job, place.local_rank), world, status, cancelled, spelling);
  launch::flush_output();
}

namespace {

// Runs as one of several ranks that launch_local_ranks() has started. Returns the exit code; the status
// explains why the rank failed.
int run_as_worker(const launch::Worker& worker, const std::function<void(const launch::Worker&)>& run) {
  launch::RankStatus& status = worker.status();
  comm::prepare_nccl();
  try {
    run(worker);
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

}  // namespace

launch::Failure launch_local_ranks(int64_t ranks, const MessageOptions& messages,
                                   std::optional<std::chrono::milliseconds> most_stopped,
                                   const std::function<void(const launch::Worker&)>& run) {
  if (ranks > kMostRanks) usage_error(field("nproc"), "{} ranks on one host, at most {}", ranks, kMostRanks);
  comm::Rendezvous common;
  common.interface = "lo";
  common = with_options(common, messages);  // detects errors before ranks start
  temporary_token();                        // drawn once, for all ranks
  return launch::launch_ranks(ranks, most_stopped.value_or(common.timeout),
                              [&](const launch::Worker& worker) { return run_as_worker(worker, run); });
}

int run_on_local_ranks(const Job& job, const FieldSpelling& spelling) {
  const launch::Failure failure =
      launch_local_ranks(job.ranks(), job.arguments.messages, {}, [&](const launch::Worker& worker) {
        run_as_rank(
            job.arguments.messages, [&] { return job.arguments; }, worker.rendezvous, worker.status(),
            [&] { return worker.statuses.must_end(); }, /*may_pin=*/true, spelling);
      });
  if (failure.exit_code == 0) return 0;
  for (const std::string& path : job.outputs) remove_unfinished_file(path);
  for (const auto& file : {job.arguments.run.report, job.arguments.run.timeline, job.arguments.run.record}) {
    if (file) remove_unfinished_file(*file);
  }
  // The last line of the terminal may hold a progress bar.
  if (::isatty(STDERR_FILENO) == 1) launch::say("\r\033[K");
  return launch::print_failure(failure, spelling);
}

}  // namespace tessera::job
