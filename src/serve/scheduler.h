// Decides which job runs where: the policy of a server, without processes, threads, clocks or randomness.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serve/cost_curve.h"
#include "serve/fair_queue.h"
#include "serve/job.h"

namespace tessera::serve {

using WorldId = int64_t;
using RunId = int64_t;  // never used twice

struct SchedulerOptions {
  // Bounds for jobs that have not ended, including running ones.
  int64_t max_jobs = 10'000;
  int64_t max_jobs_of_owner = 1'000;
  uint64_t max_bytes = uint64_t{256} << 20;
  // How many runs of a world advance in turns. If n equal jobs of s seconds run one after the other, the k-th
  // is done after k s, on average after (n + 1) s / 2; in turns, all are done after about n s, which is never
  // less. So more than one makes sense only if two runs in turns are faster than one after the other.
  int64_t max_runs = 1;
  int64_t max_pictures = 16;  // in a batch; how many share one below this limit follows from measured steps
  // How far an owner may get ahead of others by jobs that begin before their turn, and how much sooner than
  // the end of a run another job's turn must come for the run to make room. Making room costs a world the
  // work before the steps, such as encoding prompts, a second time.
  Seconds quantum{30};
  RunId first_run = 1;  // the numbers of runs start with it
};

// A job that was running when this many worlds were lost shares no world from then on, and fails at the last
// limit.
inline constexpr int kCrashesUntilAlone = 2;
inline constexpr int kMaxCrashes = 3;

// Why a job was not accepted.
struct Refusal {
  enum class Reason { kDraining, kTooLarge, kQueueFull, kBytesFull, kOwnerFull };
  Reason reason;
  // When to try again: the work ahead of the job, divided by the number of worlds; nothing if trying again is
  // no use.
  std::optional<Seconds> retry_after{};
};

struct Ended {
  std::string id;
  JobState state;
  bool operator==(const Ended&) const = default;
};

// Where a saved run stands.
struct SavedStep {
  RunId run = 0;
  int64_t step = 0;  // the next one
  bool is_shared =
      false;  // whether the run has other jobs, so that none of them can be resumed without the others
  bool operator==(const SavedStep&) const = default;
};

// What a world has to do before its next step, in this order. The scheduler assumes that it is done, except
// for dropped runs: they occupy the world until let_go() reports that their last step has ended.
struct Decision {
  std::vector<Ended> ended{};            // jobs of this world that were cancelled or have expired
  std::vector<RunId> dropped{};          // runs in which all jobs have ended
  std::optional<RunId> set_aside{};      // to be saved where it stands, and dropped
  std::vector<std::string> unstarted{};  // jobs that expired before they began
  struct Start {
    RunId run = 0;
    std::vector<std::string> jobs{};   // those that share it, as a batch
    std::optional<SavedStep> saved{};  // where to resume; if absent, the run begins
  };
  std::vector<Start> begun{};
};

// The place of a job in the queue.
struct Outlook {
  int64_t jobs_ahead = 0;  // waiting ones; an estimate if several owners take turns
  Seconds begins_in{0};
  Seconds ends_in{0};
};

enum class Cancelled { kAtOnce, kAtNextStep, kHasNoEffect };

// Holds the jobs that have not ended, and decides between any two steps of a world what it does next. It is
// fair between owners (FairQueue); one owner's jobs come in order. In addition:
//
// - A job with a deadline that it would miss in its turn begins before its turn, if it can meet it.
// - Jobs with the same batch key begin together with the one whose turn it is, if this is faster (CostCurve).
// - A run makes room for a job whose turn would be earlier by a quantum, or for a deadline, if it can be
//   saved and what it has left is longer; its own deadlines have to allow it.
// - Runs alternate on one world only if they have a batch key in common, as sessions ask (engine/session.h).
//   If the job whose turn it is does not fit the runs under way, it waits for their end, and so do others.
//
// Jobs and runs that no longer exist are ignored, because messages about them may be in flight. Points in
// time (`now`) must not go back. A call takes O(log n) for n jobs, and O(n) if it ends n jobs.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options = {})
      : options_(options), next_run_(options.first_run) {}

  // The id must be new, the estimate and the numbers positive. Returns nothing if the job is accepted.
  std::optional<Refusal> submit(const Job& job, Seconds now);
  // Accepts a job that an earlier process had accepted, regardless of the bounds, behind the waiting ones.
  void restore(const Job& job, int crashes, std::optional<SavedStep> saved = {});
  Cancelled cancel(std::string_view id);
  // Ends queued jobs whose deadline has come, and returns their ids. decide() does this too.
  std::vector<std::string> expire(Seconds now);
  // From now on, no job is accepted and none begins.
  void drain() { is_draining_ = true; }

  // The state of a job that has not ended.
  std::optional<JobState> state(std::string_view id) const;
  int crashes(std::string_view id) const;
  // The outlook of a queued job.
  std::optional<Outlook> outlook(std::string_view id, Seconds now) const;
  int64_t size() const { return static_cast<int64_t>(records_.size()); }  // jobs that have not ended
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  uint64_t bytes() const { return bytes_; }

  // A world can take runs. Its id may have been that of a lost world.
  void ready(WorldId world);
  // The world takes no more runs; is_idle() is true when its last run has ended.
  void stop(WorldId world);
  bool is_idle(WorldId world) const;
  // The world no longer works on a run that was dropped or set aside.
  void let_go(RunId run);
  // The world is gone. Its jobs go back to the head of the queue with their saved state. Jobs that have
  // reached the number of crashes allowed have failed, and are returned.
  std::vector<Ended> lost(WorldId world);

  // The run has done this many steps in total.
  void stepped(RunId run, int64_t steps, Seconds now);
  // The run is saved after this many steps, and can be resumed from there.
  void saved(RunId run, int64_t step);
  // The saved state of the run no longer exists; jobs that were to resume from it start over.
  void unsaved(RunId run);
  // The run has delivered its pictures: its jobs are now encoding, except for cancelled ones, which are
  // returned.
  std::vector<Ended> completed(RunId run);
  // The run has failed, because of a request or for lack of memory, while its world goes on. If it had a
  // single job, this job has failed and is returned; the jobs of a batch begin anew, each in a run of its
  // own. After a lack of memory, batches with this key have fewer pictures.
  std::vector<Ended> failed(RunId run, bool lacks_memory = false);
  // A job that was encoding has ended.
  void finished(std::string_view id);

  // Returns what a world does before its next step, or at once if it has no run. Empty for an unknown world.
  Decision decide(WorldId world, Seconds now);

  // A step with this many pictures of this batch key took this long.
  void measured(const std::string& batch_key, int64_t pictures, Seconds step);

 private:
  struct Record {
    Job job;
    JobState state = JobState::kQueued;
    FairQueue::Ticket ticket = 0;
    Seconds due{0};
    Seconds left{0};  // of the estimate, from the saved step on
    int crashes = 0;
    bool is_single = false;  // must have a run of its own
    bool is_cancelled = false;
    std::optional<SavedStep> saved{};
    RunId run = 0;      // while it is running
    Seconds charge{0};  // for its part in the run
  };
  struct Run {
    WorldId world;
    std::vector<Record*> members{};
    bool is_shared = false;      // whether it began with several jobs
    int64_t begin = 0, end = 0;  // steps; what follows them counts as one more
    int64_t done = 0;
    Seconds step{0}, step_began{0};  // how long a step takes, and when the current one began
    Seconds charge{0};               // for its members
    Seconds tag{0};                  // the lowest account of its members' owners when it began
  };
  struct World {
    bool is_stopping = false;
    std::vector<RunId> runs{};
    // Runs that were dropped or set aside during one of their steps, and roughly when that step ends.
    std::map<RunId, Seconds> leaving{};
    std::optional<FairQueue::Ticket> next{};  // the job for which a run has made room
  };
  // Waiting jobs of a batch key, in the order in which they are due.
  struct Alike {
    std::set<std::pair<Seconds, FairQueue::Ticket>> jobs{};
    int64_t pictures = 0;
  };

  const Record* find(std::string_view id) const;
  Record& create(const Job& job);
  void enqueue(Record& record, bool is_new);
  void dequeue(Record& record);
  void forget(Record& record);
  bool runs_alone(const Record& record) const { return record.crashes >= kCrashesUntilAlone; }
  std::optional<Refusal> refusal(const Job& job, Seconds now) const;

  // Runs.
  Seconds left(const Run& run) const;
  void advance(Run& run, int64_t steps);
  // The order in which jobs return to the head of the queue, such that the first is again before the others.
  static std::vector<Record*> last_to_first(const std::vector<Record*>& members) {
    return {members.rbegin(), members.rend()};
  }
  void leave_run(Record& record, Run& run, int64_t useful_steps);
  void end_run(RunId id);
  void drop_run(RunId id);
  void return_to_queue(Record& record, Run& run, std::vector<Ended>& ended);
  void end(Record& record, JobState state, std::vector<Ended>& ended);

  // Decisions.
  void end_members(World& world, Seconds now, Decision& decision);
  bool has_room(const World& world) const;
  bool fits(const World& world, const Record& record, RunId without = 0) const;
  Seconds soonest_end(WorldId except, Seconds now) const;
  Record* urgent(Seconds now, Seconds end);
  Record* choose(WorldId id, Seconds now);
  Record* choose_instead(const Run& run, Seconds now, Seconds end);
  bool may_make_room(const Run& run, Seconds extra, Seconds now) const;
  void make_room(WorldId id, World& world, Seconds now, Decision& decision);
  void take(Record& record, std::vector<Record*>& batch);
  std::vector<Record*> candidates(const Record& head) const;
  std::vector<Record*> take_batch(Record& head, Seconds now);
  void begin(WorldId id, World& world, Record& head, Seconds now, Decision& decision);
  int64_t open_worlds() const;
  Seconds wait(const FairQueue::Ahead& ahead, Seconds now) const;

  const SchedulerOptions options_;
  bool is_draining_ = false;
  uint64_t bytes_ = 0;
  FairQueue::Ticket next_ticket_ = 0;
  RunId next_run_;
  FairQueue queue_;
  std::unordered_map<std::string, Record> records_;
  std::unordered_map<std::string, int64_t> jobs_of_owner_;
  std::map<WorldId, World> worlds_;
  std::map<RunId, Run> runs_;
  // The queued jobs.
  std::unordered_map<FairQueue::Ticket, Record*> tickets_;
  std::unordered_map<std::string, Alike> alike_;       // by batch key
  std::unordered_map<std::string, CostCurve> curves_;  // likewise
  std::map<RunId, std::vector<Record*>> saved_;        // by the saved run
  std::set<std::pair<Seconds, FairQueue::Ticket>> deadlines_;
  std::set<std::pair<Seconds, FairQueue::Ticket>>
      last_begin_;  // when to begin at the latest to meet the deadline
};

}  // namespace tessera::serve
