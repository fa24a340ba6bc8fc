// The jobs of a server: JobService implemented by a scheduler, a journal and worlds.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "job/job.h"
#include "serve/admission.h"
#include "serve/encoder.h"
#include "serve/estimates.h"
#include "serve/job_service.h"
#include "serve/journal_thread.h"
#include "serve/memory_gate.h"
#include "serve/metrics.h"
#include "serve/scheduler.h"
#include "serve/stored_job.h"
#include "serve/world_link.h"

namespace tessera::serve {

struct ServiceOptions {
  job::Job base;  // admit(), Encoder
  std::string model_name;
  RequestLimits limits = {};
  int64_t worlds = 1;  // on this machine, all alike
  std::vector<MemoryLimit> memory = memory_limits();
  SchedulerOptions scheduler = {};
  JournalOptions journal;
  int64_t restarts = 0;  // Status
};

// What a service needs from its process.
struct ServiceHooks {
  Post post;
  std::function<Seconds()> clock;  // never goes back
  std::function<WallTime()> wall_clock;
  // Requests new processes for a world that does not answer; the old ones end with lose_world().
  std::function<void(WorldId, const std::string& why)> replace = [](WorldId, const std::string&) {};
};

// All members must be called on the server's thread. It never waits: the journal and the encoder have threads
// of their own, whose answers arrive through ServiceHooks::post.
class Service final : public JobService {
 public:
  // Takes up the jobs that an earlier process has left in the journal. Throws as Journal does.
  Service(ServiceOptions options, ServiceHooks hooks, Metrics& metrics);
  ~Service() override;

  void submit(JobRequest request, Submitted done) override;
  void find(const std::string& owner, const std::string& id, Found done) override;
  void list(const std::string& owner, const JobFilter& filter,
            std::function<void(std::vector<JobView>)> done) override;
  void cancel(const std::string& owner, const std::string& id, Found done) override;
  void remove(const std::string& owner, const std::string& id, std::function<void(bool)> done) override;
  std::shared_ptr<Follower> follow(const std::string& owner, const std::string& id, int64_t preview_every,
                                   Told told) override;
  std::shared_ptr<const std::string> preview(const std::string& owner, const std::string& id) override;
  std::vector<JobView> unfinished(const std::string& owner) override;
  const engine::Model& model() const override { return options_.base.model; }
  std::string model_name() const override { return options_.model_name; }
  WallTime started() const override { return started_; }
  const RequestLimits& limits() const { return options_.limits; }

  // The processes of a world start; it can take runs when it reports that it is ready.
  void add_world(WorldId id, std::unique_ptr<WorldLink> link, int64_t restarts = 0);
  // According to the supervisor, the world has loaded its weights; it may still be working on a run of the
  // previous front.
  void world_loaded(WorldId id);
  // A world may have sent events.
  void read_world(WorldId id);
  // The processes of a world are gone, which read_world() may have noticed before.
  void lose_world(WorldId id, const std::string& why);

  // Handles what is due: deadlines, silent worlds, clients that have gone. To be called every 100 ms or so.
  void tick();
  // Refuses jobs from now on. Running jobs continue to their end, stored ones that wait are left to the next
  // process, and the clients of others that wait are informed.
  void drain();
  // Whether no job is running or being written.
  bool is_idle() const;

  struct WorldStatus {
    WorldId id = 0;
    bool is_ready = false;
    bool is_finishing = false;  // the world works on a step whose result nobody needs any more
    int64_t restarts = 0, ranks = 0;
    uint64_t weights_bytes = 0;
    int64_t runs = 0;
    std::string last_loss = {};
  };
  struct Status {
    std::vector<WorldStatus> worlds = {};
    int64_t restarts = 0;  // of the process that has this service
    int64_t queued = 0, running = 0;
    uint64_t bytes = 0;
    bool is_draining = false;
    bool is_ready() const;
  };
  Status status() const;
  // Brings the gauges up to date.
  void measure();

 private:
  class Following;
  struct LiveJob;
  using JobPtr = std::shared_ptr<LiveJob>;
  using Slot = SavedRunFile::Slot;
  struct Run;
  struct World;
  struct Loss {
    std::string why;
    int64_t restarts = 0;  // before it
  };
  // What is needed to resume a saved run.
  struct Saved {
    std::vector<Slot> slots;
    std::vector<std::string> requests;
    std::shared_ptr<const std::string> bytes = {};
    std::optional<WorldId> expected_from = {};  // the world that is going to send the bytes
    int64_t users = 0;                          // the number of jobs that refer to it in LiveJob::saved
    std::optional<RunId> waiting = {};          // the run that resumes from it
  };

  // Jobs: service.cc.
  Seconds now() const { return hooks_.clock(); }
  JobPtr live(const std::string& owner, const std::string& id) const;
  JobPtr live(const std::string& id) const;
  void remember(const LiveJob& job);
  bool attach(const JobRequest& request, const Submitted& done);
  void admit_and_submit(JobRequest request, Submitted done);
  void submit_admitted(const JobRequest& request, const Admitted& admitted, const MemoryGate::Lack& lack,
                       Submitted done);
  void begin_job(const JobPtr& job, Submitted done);
  void accepted(const JobPtr& job, const Submitted& done,
                const std::variant<Acceptance, std::string>& answer);
  void keep_uploads(JobRequest request, Submitted done);
  void remove_uploads(std::vector<std::string> paths);
  void remove_stray_uploads();
  Job scheduled(const LiveJob& job) const;
  JobPtr create(const JobRequest& request, const Admitted& admitted);
  JobView view_of_job(const LiveJob& job) const;
  bool cancel_job(const JobPtr& job, const JobError& why);
  void end(const JobPtr& job, JobState state, std::optional<JobError> error = {});
  void end(const Ended& ended);
  void restore(const JournalJob& job, std::map<std::filesystem::path, RunId>& saved);
  void look_at_restored();
  std::optional<SavedStep> restore_saved(const JournalJob& job, LiveJob& live,
                                         std::map<std::filesystem::path, RunId>& saved);

  // Followers: service_followers.cc.
  void tell(const JobPtr& job, JobUpdate::Kind kind, int64_t index = 0,
            std::shared_ptr<const std::string> bytes = {}, const std::string& content_type = {});
  void unfollow(const JobPtr& job);
  void tell_places();
  void end_orphans();

  // Worlds: service_worlds.cc.
  void send(World& world, const WorldOrder& order);
  void decide(WorldId id);
  void decide_all();
  std::vector<JobPtr> start(WorldId id, const Decision::Start& start);
  Run make_run(WorldId id, const Decision::Start& start, const Saved* saved);
  void order_run(RunId id, const std::shared_ptr<const std::string>& saved);
  std::vector<JobPtr> set_aside(World& world, RunId id);
  void drop_run(World& world, RunId id);
  void let_go(WorldId id, World& world, RunId run);
  void give_up_saved(RunId id, Saved& saved);
  void release_saved(LiveJob& job);
  void use_saved(LiveJob& job, RunId run);
  void handle(WorldId id, WorldEvent event);
  void became_ready(WorldId id, World& world);
  void step_done(RunId id, Run& run, const WorldEvent& event);
  void measure_step(RunId id, Run& run, const WorldEvent& event);
  void save_if_due(RunId id, Run& run);
  void run_saved(RunId id, WorldEvent event);
  void warned(const Run& run, const WorldEvent& event);
  void run_ended(RunId id, engine::Seconds seconds);
  void run_failed(RunId id, const WorldEvent& event);
  std::vector<JobPtr> back_to_queue(RunId id);
  void tell_states(const std::vector<JobPtr>& jobs);
  int64_t watched_every(const Run& run) const;
  void watch_run(RunId id);
  std::optional<std::pair<JobPtr, int64_t>> picture_of(const Run& run, int64_t index) const;
  static Seconds most_silence(const Run& run);
  Seconds most_silence(const World& world) const;
  void check_silence();

  // Results: service_results.cc.
  void previewed(const Run& run, WorldEvent event);
  void pictured(const Run& run, WorldEvent event);
  void made(const JobPtr& job, int64_t index, const Encoder::Made& made);
  void finish(const JobPtr& job);

  struct Families;  // of metrics
  const ServiceOptions options_;
  const ServiceHooks hooks_;
  const WallTime started_;
  std::unique_ptr<Families> metrics_;
  Scheduler scheduler_;
  Estimates estimates_;
  MemoryGate memory_;
  std::deque<std::pair<JobPtr, Admitted>> restored_;  // those whose memory still has to be checked
  std::map<std::string, JobPtr> jobs_;                // those that have not ended, by id, in order of
                                                      // acceptance
  std::map<std::pair<std::string, std::string>, std::string> keys_;  // ids, by owner and idempotency key
  // Ids of the latest requests, by owner and hash of the body.
  std::map<std::pair<std::string, std::string>, std::string> hashes_;
  std::deque<std::pair<std::pair<std::string, std::string>, std::string>> hash_order_;  // and their ids
  std::map<WorldId, World> worlds_;
  std::map<WorldId, Loss> losses_;  // the last one of each world
  std::map<RunId, Run> runs_;
  std::map<RunId, Saved> saved_;
  bool is_draining_ = false;
  WallTime last_id_time_ = {};
  Seconds last_tick_{0}, last_look_{0}, last_cleaning_{0};
  std::string last_place_;  // tell_places()
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  std::unique_ptr<JournalThread> journal_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace tessera::serve
