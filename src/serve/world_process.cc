#include "serve/world_process.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/host.h"
#include "core/log.h"
#include "engine/engine.h"
#include "job/job.h"
#include "job/memory_check.h"
#include "job/ranks.h"
#include "launch/streams.h"
#include "launch/thread_share.h"
#include "serve/world.h"
#include "serve/world_frames.h"

namespace tessera::serve {
namespace {

constexpr auto kMostStopped = std::chrono::seconds(2);
// While there are no runs, ranks hear from each other this often.
constexpr auto kIdle = std::chrono::seconds(1);

// The warnings of this process.
class Warnings {
 public:
  void add(const std::string& message) {
    constexpr size_t kMost = 64;
    const std::lock_guard lock(mutex_);
    if (messages_.size() < kMost) messages_.push_back(message);
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

// A process of the world, and what it needs to start.
struct Place {
  const ServeOptions& options;
  const job::Job& job;  // a request like those that will come
  int64_t number;       // of the world
  int64_t rank = 0;     // in the world
  Descriptor &control, &port;
  Warnings& warnings;

  int64_t ranks_of_host() const { return job.ranks() * options.worlds; }
  int64_t rank_of_host() const { return number * job.ranks() + rank; }
};

// The connection to the front, for a rank that adjusts its threads to the cores that others leave, unless the
// user gives a number of threads.
class FittingPort final : public WorldPort {
 public:
  FittingPort(Descriptor socket, bool fits, Warnings& warnings)
      : socket_(std::move(socket)), warnings_(warnings) {
    if (fits) share_.emplace();
  }

  std::vector<WorldOrder> orders(std::chrono::milliseconds wait) override {
    if (share_) share_->fit();
    return socket_.orders(wait);
  }
  void tell(const WorldEvent& event) override { socket_.tell(event); }
  bool will_drop(int64_t run) override { return socket_.will_drop(run); }
  std::vector<std::string> take_warnings() override { return warnings_.take(); }

 private:
  SocketPort socket_;
  Warnings& warnings_;
  std::optional<launch::ThreadShare> share_;
};

// The request with which a world determines its layout and loads the weights.
job::GenerateArguments arguments_of(const ServeOptions& options) {
  job::GenerateArguments arguments;
  arguments.request = options.defaults;
  arguments.request.prompts = {""};
  arguments.request.seed = 0;
  arguments.parallel = options.parallel;
  arguments.run.model = options.model;
  arguments.run.config = options.config;
  arguments.run.variant = options.variant;
  arguments.run.threads = options.threads;
  arguments.messages = options.messages;
  return arguments;
}

void run_rank(const Place& place, const comm::World& world) {
  job::wish_threads(place.options.threads, place.ranks_of_host());
  job::pin_rank(place.rank_of_host(), place.ranks_of_host());
  const job::Job job = job::on_local_device(place.job, place.rank_of_host());
  set_threads(at::get_num_threads());
  const bool is_first = place.rank == 0;
  const uint64_t budget =
      place.options.max_weights ? static_cast<uint64_t>(*place.options.max_weights) : kUnlimited;
  engine::Engine engine(job.model, budget, world);
  load_world(engine, world, place.options.parallel, job.settings.request);
  if (!is_first) return run_world(engine, world, place.options.parallel, nullptr, kIdle);
  ControlSocket(std::move(place.control)).tell({.kind = ControlMessage::Kind::kReady, .world = place.number});
  FittingPort port(std::move(place.port), place.ranks_of_host() == 1 && !place.options.threads,
                   place.warnings);
  run_world(engine, world, place.options.parallel, &port, kIdle);
}

}  // namespace

job::Job plan_world(const ServeOptions& options) {
  const ComputesAlone alone;  // the ranks may be forks of this process
  return job::plan_job(arguments_of(options), std::nullopt);
}

launch::Failure run_world_process(const ServeOptions& options, int64_t number, Descriptor control,
                                  Descriptor port) {
  Warnings warnings;
  const ScopedLogSink sink([number, &warnings](LogLevel level, const std::string& message) {
    if (level != LogLevel::kWarning) return;
    launch::say(fmt::format("tessera: world {}: warning: {}\n", number, spell(message)));
    warnings.add(message);
  });
  const job::Job job = plan_world(options);
  {
    const ComputesAlone alone;
    job::require_memory(job, job.ranks());
  }
  for (const std::string& warning : job.settings.warnings) log_warning("{}", warning);
  Place place{.options = options,
              .job = job,
              .number = number,
              .control = control,
              .port = port,
              .warnings = warnings};
  if (job.ranks() == 1) {
    run_rank(place, comm::World());
    return {};
  }
  return job::launch_local_ranks(
      job.ranks(), options.messages, kMostStopped, [&](const launch::Worker& worker) {
        place.rank = worker.rendezvous.rank;
        run_rank(place, job::join_ranks(options.messages, worker.rendezvous, worker.status()));
      });
}

}  // namespace tessera::serve
