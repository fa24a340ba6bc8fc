// A server without anything but its policy: random clients, and worlds that step, fail and get lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "serve/scheduler.h"

namespace tessera::serve {
namespace {

using Random = std::mt19937_64;

double uniform(Random& random, double from, double to) {
  return std::uniform_real_distribution<double>(from, to)(random);
}
int64_t integer(Random& random, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(random);
}

struct SimulatedJob {
  Job job;
  JobState state = JobState::kQueued;
  int crashes = 0;
  bool is_cancelled = false;
  bool is_single = false;
  std::optional<SavedStep> saved{};
  RunId run = 0;
};

struct SimulatedRun {
  std::vector<size_t> jobs{};  // that are left
  int64_t step = 0, end = 0;
  bool is_shared = false;
};

struct SimulatedWorld {
  bool is_there = false, is_stopping = false;
  std::vector<RunId> runs{}, leaving{};
};

// What clients and worlds do, and what the scheduler may answer. Every answer is checked when it is given.
class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        options_{.max_jobs = integer(random_, 20, 400),
                 .max_jobs_of_owner = integer(random_, 10, 200),
                 .max_bytes = static_cast<uint64_t>(integer(random_, 2'000, 40'000)),
                 .max_runs = integer(random_, 1, 3),
                 .max_pictures = integer(random_, 1, 8),
                 .quantum = Seconds(uniform(random_, 0, 60))},
        scheduler_(options_),
        worlds_(static_cast<size_t>(integer(random_, 1, 4))),
        owners_(integer(random_, 1, 12)),
        load_(uniform(random_, 0.02, 0.4)) {
    // One key gains from batches, one does not, one is not measured, and one gains for two alone.
    for (int64_t n = 1; n <= 8; ++n) {
      scheduler_.measured("k0", n, Seconds(1 + 0.1 * static_cast<double>(n)));
      scheduler_.measured("k1", n, Seconds(1.02 * static_cast<double>(n)));
      if (n <= 2) scheduler_.measured("k3", n, Seconds(1 + 0.2 * static_cast<double>(n)));
    }
    restart();
  }

  // Ends when there is a failure; what it was is reported.
  void run(int64_t events) {
    for (int64_t i = 0; i < events && !testing::Test::HasFailure(); ++i) {
      // Towards the end no jobs are accepted.
      if (!is_draining_ && i > events - events / 50) {
        is_draining_ = true;
        scheduler_.drain();
      }
      now_ += Seconds(-std::log(uniform(random_, 1e-9, 1)) * 0.3);
      event();
      EXPECT_EQ(scheduler_.size(), unended_);
      EXPECT_EQ(scheduler_.queued(), queued_);
      EXPECT_EQ(scheduler_.bytes(), bytes_);
      EXPECT_LE(bytes_, options_.max_bytes);
      EXPECT_LE(unended_, options_.max_jobs);
      if (i % 1000 == 0) check_all();
    }
    check_all();
    EXPECT_GT(ended_by_[JobState::kSucceeded], 0);
  }

  std::map<JobState, int64_t> ended_by_;
  int64_t set_aside_ = 0, shared_ = 0, resumed_ = 0;

 private:
  static std::string id_of(size_t number) { return "j" + std::to_string(number); }
  SimulatedJob& job(const std::string& id) { return jobs_.at(std::stoul(id.substr(1))); }

  void event() {
    const double chance = uniform(random_, 0, 1);
    if (chance < load_) return submit();
    if (chance < load_ + 0.02) return cancel();
    if (chance < load_ + 0.025) return lose();
    if (chance < load_ + 0.035) return restart();
    if (chance < load_ + 0.036) return stop();
    if (chance < load_ + 0.05) return ask();
    if (chance < load_ + 0.06) return fail();
    if (chance < load_ + 0.07) return save();
    if (chance < load_ + 0.11) return finish();
    if (chance < load_ + 0.12) return expired(scheduler_.expire(now_));
    step();
  }

  void submit() {
    Job job{.id = id_of(jobs_.size()),
            .owner = "o" + std::to_string(integer(random_, 0, owners_ - 1)),
            .batch_key = "k" + std::to_string(integer(random_, 0, 3)),
            .estimate = Seconds(std::exp(uniform(random_, -1, 5))),
            .steps = integer(random_, 1, 30),
            .pictures = integer(random_, 1, 10) == 1 ? 2 : 1,
            .bytes = static_cast<uint64_t>(integer(random_, 1, 200)),
            .may_join = integer(random_, 1, 5) > 1,
            .may_be_saved = integer(random_, 1, 5) > 1};
    if (integer(random_, 1, 4) == 1) job.deadline = now_ + job.estimate * uniform(random_, -0.1, 4);
    const int64_t of_owner =
        std::ranges::count_if(open_, [&](size_t each) { return jobs_[each].job.owner == job.owner; });
    const bool fits = bytes_ + job.bytes <= options_.max_bytes && unended_ < options_.max_jobs &&
                      of_owner < options_.max_jobs_of_owner && !is_draining_;
    const std::optional<Refusal> refusal = scheduler_.submit(job, now_);
    EXPECT_EQ(!refusal, fits);
    if (refusal) {
      EXPECT_EQ(refusal->retry_after.has_value(), !is_draining_);
      if (refusal->retry_after) {
        EXPECT_GE(*refusal->retry_after, Seconds(0));
      }
      return;
    }
    if (job.deadline) job.deadline = std::max(*job.deadline, now_);
    bytes_ += job.bytes;
    ++unended_;
    ++queued_;
    open_.push_back(jobs_.size());
    jobs_.push_back({.job = job});
  }

  void ended(const std::string& id, JobState state) {
    SimulatedJob& each = job(id);
    EXPECT_FALSE(has_ended(each.state)) << id << " has ended twice";
    if (each.state == JobState::kQueued) --queued_;
    each.state = state;
    --unended_;
    bytes_ -= each.job.bytes;
    ++ended_by_[state];
    std::erase(open_, std::stoul(id.substr(1)));
    if (each.run != 0) std::erase(runs_.at(each.run).jobs, std::stoul(id.substr(1)));
    each.run = 0;
  }

  void expired(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) {
      EXPECT_EQ(job(id).state, JobState::kQueued);
      EXPECT_LE(*job(id).job.deadline, now_);
      ended(id, JobState::kExpired);
    }
  }

  void cancel() {
    if (jobs_.empty()) return;
    const bool is_old = integer(random_, 1, 3) == 1 || open_.empty();  // has probably ended
    const auto last = static_cast<int64_t>((is_old ? jobs_.size() : open_.size())) - 1;
    const auto at = static_cast<size_t>(integer(random_, 0, last));
    const size_t number = is_old ? at : open_[at];
    SimulatedJob& each = jobs_[number];
    const Cancelled answer = scheduler_.cancel(id_of(number));
    if (has_ended(each.state)) {
      EXPECT_EQ(answer, Cancelled::kHasNoEffect);
    } else if (each.state == JobState::kRunning) {
      EXPECT_EQ(answer, Cancelled::kAtNextStep);
      each.is_cancelled = true;
    } else {
      EXPECT_EQ(answer, Cancelled::kAtOnce);
      ended(id_of(number), JobState::kCancelled);
    }
  }

  // Jobs go from a run to the queue, or end.
  void return_all(const std::vector<RunId>& runs, const std::vector<Ended>& over, bool is_crash) {
    for (const RunId id : runs) {
      SimulatedRun& run = runs_.at(id);
      for (const size_t number : std::vector<size_t>(run.jobs)) {
        SimulatedJob& each = jobs_[number];
        const auto found = std::ranges::find(over, id_of(number), &Ended::id);
        each.crashes += is_crash ? 1 : 0;
        if (!is_crash) each.is_single = true;
        const bool has_failed = each.crashes >= kMaxCrashes || (!is_crash && !run.is_shared);
        EXPECT_EQ(found != over.end(), each.is_cancelled || has_failed);
        if (found == over.end()) {
          each.state = JobState::kQueued;
          each.run = 0;
          ++queued_;
          const bool is_alone = each.is_single || each.crashes >= kCrashesUntilAlone;
          if (each.saved && each.saved->is_shared && is_alone) each.saved = {};
        } else {
          EXPECT_EQ(found->state, each.is_cancelled ? JobState::kCancelled : JobState::kFailed);
          ended(found->id, found->state);
        }
      }
      runs_.erase(id);
    }
  }

  size_t some_world() {
    return static_cast<size_t>(integer(random_, 0, static_cast<int64_t>(worlds_.size()) - 1));
  }

  void lose() {
    const size_t id = some_world();
    SimulatedWorld& world = worlds_[id];
    return_all(std::exchange(world.runs, {}), scheduler_.lost(static_cast<WorldId>(id)), true);
    world = {};
  }

  void restart() {
    const size_t id = some_world();
    if (worlds_[id].is_there) return;
    worlds_[id].is_there = true;
    scheduler_.ready(static_cast<WorldId>(id));
  }

  // One that has nothing more to do leaves.
  void stop() {
    const size_t id = some_world();
    scheduler_.stop(static_cast<WorldId>(id));
    worlds_[id].is_stopping = worlds_[id].is_there;
    if (worlds_[id].is_there && worlds_[id].runs.empty()) lose();
  }

  void fail() {
    SimulatedWorld& world = worlds_[some_world()];
    if (world.runs.empty()) return;
    const RunId id = world.runs.back();
    world.runs.pop_back();
    return_all({id}, scheduler_.failed(id), false);
  }

  void save() {
    const SimulatedWorld& world = worlds_[some_world()];
    if (world.runs.empty()) return;
    const SimulatedRun& run = runs_.at(world.runs.front());
    scheduler_.saved(world.runs.front(), run.step);
    for (const size_t each : run.jobs)
      jobs_[each].saved = {.run = world.runs.front(), .step = run.step, .is_shared = run.is_shared};
  }

  void finish() {
    for (const size_t each : open_) {
      if (jobs_[each].state != JobState::kEncoding) continue;
      scheduler_.finished(id_of(each));
      return ended(id_of(each), JobState::kSucceeded);
    }
  }

  void ask() {
    if (open_.empty()) return;
    const size_t number =
        open_[static_cast<size_t>(integer(random_, 0, static_cast<int64_t>(open_.size()) - 1))];
    const std::optional<Outlook> outlook = scheduler_.outlook(id_of(number), now_);
    EXPECT_EQ(outlook.has_value(), jobs_[number].state == JobState::kQueued);
    if (!outlook) return;
    EXPECT_GE(outlook->jobs_ahead, 0);
    EXPECT_LT(outlook->jobs_ahead, queued_);
    EXPECT_GE(outlook->begins_in, Seconds(0));
    EXPECT_GT(outlook->ends_in, outlook->begins_in);
  }

  void step() {
    const size_t id = some_world();
    SimulatedWorld& world = worlds_[id];
    if (integer(random_, 1, 3) > 1) {
      for (const RunId each : std::exchange(world.leaving, {})) scheduler_.let_go(each);
    }
    for (const RunId each : std::vector<RunId>(world.runs)) {
      SimulatedRun& run = runs_.at(each);
      ++run.step;
      if (run.step <= run.end) {
        scheduler_.stepped(each, run.step, now_);
        continue;
      }
      const std::vector<Ended> over = scheduler_.completed(each);
      for (const size_t number : std::vector<size_t>(run.jobs)) {
        EXPECT_EQ(std::ranges::count(over, id_of(number), &Ended::id), jobs_[number].is_cancelled ? 1 : 0);
        jobs_[number].state = JobState::kEncoding;
        jobs_[number].run = 0;
      }
      for (const Ended& one : over) ended(one.id, one.state);
      runs_.erase(each);
      std::erase(world.runs, each);
    }
    const Decision decision = scheduler_.decide(static_cast<WorldId>(id), now_);
    if (!world.is_there) {
      EXPECT_TRUE(decision.begun.empty() && decision.ended.empty());
    }
    apply(world, decision);
  }

  void apply(SimulatedWorld& world, const Decision& decision) {
    expired(decision.unstarted);
    for (const Ended& each : decision.ended) {
      const SimulatedJob& one = job(each.id);
      EXPECT_EQ(std::ranges::count(world.runs, one.run), 1);
      EXPECT_EQ(each.state, one.is_cancelled ? JobState::kCancelled : JobState::kExpired);
      if (!one.is_cancelled) {
        EXPECT_LE(*one.job.deadline, now_);
      }
      ended(each.id, each.state);
    }
    for (const RunId each : decision.dropped) {
      EXPECT_TRUE(runs_.at(each).jobs.empty());
      runs_.erase(each);
      EXPECT_EQ(std::erase(world.runs, each), 1U);
      world.leaving.push_back(each);
    }
    for (const RunId each : world.runs) EXPECT_FALSE(runs_.at(each).jobs.empty());
    if (decision.set_aside) set_aside(world, *decision.set_aside);
    if (is_draining_ || world.is_stopping) {
      EXPECT_TRUE(decision.begun.empty());
    }
    for (const Decision::Start& start : decision.begun) begin(world, start);
    EXPECT_LE(static_cast<int64_t>(world.runs.size() + world.leaving.size()), options_.max_runs);
  }

  void set_aside(SimulatedWorld& world, RunId id) {
    ++set_aside_;
    EXPECT_EQ(std::erase(world.runs, id), 1U);
    world.leaving.push_back(id);
    const SimulatedRun& run = runs_.at(id);
    for (const size_t each : run.jobs) {
      EXPECT_TRUE(jobs_[each].job.may_be_saved);
      jobs_[each].state = JobState::kQueued;
      jobs_[each].run = 0;
      jobs_[each].saved = SavedStep{.run = id, .step = run.step, .is_shared = run.is_shared};
      ++queued_;
    }
    runs_.erase(id);
  }

  void begin(SimulatedWorld& world, const Decision::Start& start) {
    SimulatedRun run{.step = start.saved ? start.saved->step : 0,
                     .is_shared = start.jobs.size() > 1 || (start.saved && start.saved->is_shared)};
    int64_t pictures = 0;
    for (const std::string& id : start.jobs) {
      SimulatedJob& each = job(id);
      EXPECT_EQ(each.state, JobState::kQueued) << id;
      EXPECT_EQ(each.saved, start.saved) << id;
      EXPECT_EQ(each.job.batch_key, job(start.jobs.front()).job.batch_key);
      const bool is_alone = each.crashes >= kCrashesUntilAlone;
      if (is_alone || each.is_single) {
        EXPECT_EQ(start.jobs.size(), 1U);
      }
      if (is_alone || !each.job.may_join) {
        EXPECT_TRUE(world.runs.empty());
      }
      for (const RunId other : world.runs) {
        const SimulatedJob& beside = jobs_[runs_.at(other).jobs.front()];
        EXPECT_TRUE(beside.job.may_join && beside.crashes < kCrashesUntilAlone);
        EXPECT_EQ(beside.job.batch_key, each.job.batch_key);
      }
      pictures += each.job.pictures;
      each.state = JobState::kRunning;
      each.run = start.run;
      run.end = std::max(run.end, each.job.steps);
      run.jobs.push_back(std::stoul(id.substr(1)));
      --queued_;
    }
    if (run.jobs.size() > 1) {
      ++shared_;
      EXPECT_LE(pictures, options_.max_pictures);
      const std::string& key = job(start.jobs.front()).job.batch_key;
      EXPECT_TRUE(key == "k0" || (key == "k3" && pictures == 2)) << key;
    }
    resumed_ += start.saved ? 1 : 0;
    world.runs.push_back(start.run);
    EXPECT_TRUE(runs_.emplace(start.run, std::move(run)).second);
  }

  // No job is lost, or in two places, and those that have ended stay so.
  void check_all() {
    std::map<size_t, int> places;
    for (const SimulatedWorld& world : worlds_) {
      for (const RunId run : world.runs) {
        for (const size_t each : runs_.at(run).jobs) ++places[each];
      }
    }
    for (size_t i = 0; i < jobs_.size(); ++i) {
      const SimulatedJob& each = jobs_[i];
      const std::optional<JobState> state = scheduler_.state(id_of(i));
      EXPECT_EQ(state, has_ended(each.state) ? std::nullopt : std::optional(each.state)) << i;
      EXPECT_EQ(places[i], each.state == JobState::kRunning ? 1 : 0) << i;
      if (state) {
        EXPECT_EQ(scheduler_.crashes(id_of(i)), each.crashes);
      }
    }
  }

  Random random_;
  const SchedulerOptions options_;
  Scheduler scheduler_;
  Seconds now_{0};
  std::vector<SimulatedJob> jobs_;  // "j" and its index is a job's id
  std::vector<size_t> open_;        // jobs that have not ended
  std::map<RunId, SimulatedRun> runs_;
  std::vector<SimulatedWorld> worlds_;
  const int64_t owners_;
  const double load_;
  bool is_draining_ = false;
  int64_t unended_ = 0, queued_ = 0;
  uint64_t bytes_ = 0;
};

TEST(SchedulerSimulation, LosesNothingInAMillionEvents) {
  std::map<JobState, int64_t> ended;
  int64_t set_aside = 0, shared = 0, resumed = 0;
  for (uint64_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(seed);
    simulation.run(10'000);
    for (const auto& [state, count] : simulation.ended_by_) ended[state] += count;
    set_aside += simulation.set_aside_;
    shared += simulation.shared_;
    resumed += simulation.resumed_;
  }
  // Everything has happened often.
  for (const JobState state :
       {JobState::kSucceeded, JobState::kFailed, JobState::kCancelled, JobState::kExpired})
    EXPECT_GT(ended[state], 1000) << name_of(state);
  EXPECT_GT(set_aside, 500);
  EXPECT_GT(shared, 500);
  EXPECT_GT(resumed, 500);
}

}  // namespace
}  // namespace tessera::serve
