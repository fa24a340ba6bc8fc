// Which job runs where: the policy of a server, without processes, threads, clock or chance.
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
  // Bounds of what has not ended, running jobs included.
  int64_t max_jobs = 10'000;
  int64_t max_jobs_of_owner = 1'000;
  uint64_t max_bytes = uint64_t{256} << 20;
  // How many runs of a world advance in turns. Of n equal jobs of s seconds, one after the other, the k-th is
  // done after k s, in the mean after (n + 1) s / 2; in turns all are done after about n s, which is never
  // less. So more than one makes sense only where two runs in turns are faster than the sum of both.
  int64_t max_runs = 1;
  int64_t max_pictures = 16;  // of a batch; how many there are below that follows from measured steps
  // How far ahead of others an owner may get by jobs that begin before their turn, and how much sooner than
  // the end of a run another job's turn has to be for the run to make room. To make room costs a world what
  // comes before the steps, such as encoding prompts, a second time.
  Seconds quantum{30};
  RunId first_run = 1;  // the numbers of runs begin with it
};

// A job that takes part in the loss of so many worlds shares no world, and fails at the last.
inline constexpr int kCrashesUntilAlone = 2;
inline constexpr int kMaxCrashes = 3;

// Why a job was not accepted.
struct Refusal {
  enum class Reason { kDraining, kTooLarge, kQueueFull, kBytesFull, kOwnerFull };
  Reason reason;
  // When to try again: what would come before the job, divided by the worlds; nothing where that is no use.
  std::optional<Seconds> retry_after{};
};

struct Ended {
  std::string id;
  JobState state;
  bool operator==(const Ended&) const = default;
};

// Where a run stands that was saved.
struct SavedStep {
  RunId run = 0;
  int64_t step = 0;  // that comes next
  bool is_shared =
      false;  // whether the run has other jobs, so that none of them can go on without the others
  bool operator==(const SavedStep&) const = default;
};

// What a world has to do before its next step, in this order. The scheduler goes by it that it is done, but
// for runs that are dropped: they occupy the world until let_go() says that their last step has ended.
struct Decision {
  std::vector<Ended> ended{};            // jobs of this world that are cancelled or expired
  std::vector<RunId> dropped{};          // runs of which all jobs have ended
  std::optional<RunId> set_aside{};      // is saved where it stands, and dropped
  std::vector<std::string> unstarted{};  // jobs that expired before they began
  struct Start {
    RunId run = 0;
    std::vector<std::string> jobs{};   // that share it, as a batch
    std::optional<SavedStep> saved{};  // to go on from there; else it begins
  };
  std::vector<Start> begun{};
};

// The place of a job in the queue.
struct Outlook {
  int64_t jobs_ahead = 0;  // that wait; an estimate where owners take turns
  Seconds begins_in{0};
  Seconds ends_in{0};
};

enum class Cancelled { kAtOnce, kAtNextStep, kHasNoEffect };

// Holds the jobs that have not ended, and decides at each boundary between two steps of a world what happens
// there. Between owners it is fair (FairQueue); of one owner's jobs the first comes first. Besides:
//
// - A job with a deadline that it would miss in its turn begins before its turn, if it can meet it.
// - Jobs with equal batch key begin with the one whose turn it is, where that is faster (CostCurve).
// - A run makes room for a job whose turn would be earlier by a quantum, or for a deadline, if it can be
//   saved and what it has left is longer; its own deadlines have to allow it.
// - Runs alternate on one world only if they have a batch key in common, as sessions ask (engine/session.h).
//   If the job whose turn it is does not fit the runs under way, it waits for their end, and so do others.
//
// Jobs and runs that are not there any more are ignored, because messages about them may be under way. Points
// in time (`now`) must not go back. A call takes O(log n) for n jobs, and O(n) for each of n jobs that end by
// it.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options = {})
      : options_(options), next_run_(options.first_run) {}

  // The id must be new, the estimate and the numbers positive. Nothing is returned for a job that is
  // accepted.
  std::optional<Refusal> submit(const Job& job, Seconds now);
  // Accepts a job that was accepted by an earlier process, whatever the bounds say, behind those that wait.
  void restore(const Job& job, int crashes, std::optional<SavedStep> saved = {});
  Cancelled cancel(std::string_view id);
  // Ends queued jobs whose deadline has come, and returns their ids. decide() does so too.
  std::vector<std::string> expire(Seconds now);
  // No job is accepted or begins from now on.
  void drain() { is_draining_ = true; }

  // Of a job that has not ended.
  std::optional<JobState> state(std::string_view id) const;
  int crashes(std::string_view id) const;
  // Of a job that is queued.
  std::optional<Outlook> outlook(std::string_view id, Seconds now) const;
  int64_t size() const { return static_cast<int64_t>(records_.size()); }  // jobs that have not ended
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  uint64_t bytes() const { return bytes_; }

  // A world can take runs. Its id may have been that of one that is lost.
  void ready(WorldId world);
  // It takes no more runs; is_idle() says when the last has ended.
  void stop(WorldId world);
  bool is_idle(WorldId world) const;
  // It no longer works on a run that was dropped or set aside.
  void let_go(RunId run);
  // It is gone. Its jobs go back to the head of the queue with what was saved of them, or have failed, if it
  // was the last crash that they may take part in; those are returned.
  std::vector<Ended> lost(WorldId world);

  // So many steps of a run are done, in all.
  void stepped(RunId run, int64_t steps, Seconds now);
  // It is saved where it stands after so many steps, and can be taken up from there.
  void saved(RunId run, int64_t step);
  // What was saved of it is no longer there; jobs that were to go on from there begin anew.
  void unsaved(RunId run);
  // It has given its pictures: its jobs are encoding, but for those that were cancelled, which are returned.
  std::vector<Ended> completed(RunId run);
  // It has failed, because of a request or for lack of memory, while its world goes on. The only job of a run
  // has failed by that, and is returned; those of a batch begin anew, each in a run of its own. If it was for
  // lack of memory, batches of this key have fewer pictures from now on.
  std::vector<Ended> failed(RunId run, bool lacks_memory = false);
  // A job that was encoding has ended.
  void finished(std::string_view id);

  // What a world does before its next step, or at once if it has no run. Empty for a world that is not there.
  Decision decide(WorldId world, Seconds now);

  // A step with so many pictures of this batch key took so long.
  void measured(const std::string& batch_key, int64_t pictures, Seconds step);

 private:
  struct Record {
    Job job;
    JobState state = JobState::kQueued;
    FairQueue::Ticket ticket = 0;
    Seconds due{0};
    Seconds left{0};  // of the estimate, from the step on that is saved
    int crashes = 0;
    bool is_single = false;  // has to have a run of its own
    bool is_cancelled = false;
    std::optional<SavedStep> saved{};
    RunId run = 0;      // while it is running
    Seconds charge{0};  // for what it has in the run
  };
  struct Run {
    WorldId world;
    std::vector<Record*> members{};
    bool is_shared = false;      // began with several
    int64_t begin = 0, end = 0;  // steps; what follows them counts as one
    int64_t done = 0;
    Seconds step{0}, step_began{0};  // how long a step takes, and when the one under way began
    Seconds charge{0};               // of its members
    Seconds tag{0};                  // the least account of its members' owners when it began
  };
  struct World {
    bool is_stopping = false;
    std::vector<RunId> runs{};
    // Runs that were dropped or set aside while a step of theirs was under way, and about when that ends.
    std::map<RunId, Seconds> leaving{};
    std::optional<FairQueue::Ticket> next{};  // of the job for which one of them has made room
  };
  // What waits of a batch key, in the order in which it is due.
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
  // The order in which jobs go back to the head of the queue, so that the first is before the others again.
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
  // Of queued jobs.
  std::unordered_map<FairQueue::Ticket, Record*> tickets_;
  std::unordered_map<std::string, Alike> alike_;       // by batch key
  std::unordered_map<std::string, CostCurve> curves_;  // likewise
  std::map<RunId, std::vector<Record*>> saved_;        // by the run that was saved
  std::set<std::pair<Seconds, FairQueue::Ticket>> deadlines_;
  std::set<std::pair<Seconds, FairQueue::Ticket>>
      last_begin_;  // when to begin at the latest for the deadline
};

}  // namespace tessera::serve
