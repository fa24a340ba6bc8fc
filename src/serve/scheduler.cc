#include "serve/scheduler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tessera::serve {
namespace {

// The number of batch keys whose measured steps are remembered; clients can make up any number of them.
constexpr size_t kMaxCurves = 1024;

// The remaining part of a job from a step on. What follows the steps counts as one more step.
Seconds left_from(const Job& job, int64_t step) {
  const auto all = static_cast<double>(job.steps + 1);
  return job.estimate * (std::max(all - static_cast<double>(step), 1.0) / all);
}

}  // namespace

// Jobs.

const Scheduler::Record* Scheduler::find(std::string_view id) const {
  const auto found = records_.find(std::string(id));
  return found == records_.end() ? nullptr : &found->second;
}

std::optional<JobState> Scheduler::state(std::string_view id) const {
  const Record* record = find(id);
  return record == nullptr ? std::nullopt : std::optional(record->state);
}

int Scheduler::crashes(std::string_view id) const {
  const Record* record = find(id);
  return record == nullptr ? 0 : record->crashes;
}

Scheduler::Record& Scheduler::create(const Job& job) {
  TESSERA_CHECK(job.estimate > Seconds(0) && job.estimate < kNever && job.steps > 0 && job.pictures > 0,
                "job {}: {} s, {} steps, {} pictures", job.id, job.estimate.count(), job.steps, job.pictures);
  const auto [found, is_new] = records_.try_emplace(job.id);
  TESSERA_CHECK(is_new, "job {} is known", job.id);
  Record& record = found->second;
  record.job = job;
  record.ticket = next_ticket_++;
  record.left = job.estimate;
  bytes_ += job.bytes;
  ++jobs_of_owner_[job.owner];
  return record;
}

void Scheduler::forget(Record& record) {
  bytes_ -= record.job.bytes;
  const auto owner = jobs_of_owner_.find(record.job.owner);
  if (--owner->second == 0) jobs_of_owner_.erase(owner);
  records_.erase(std::string(record.job.id));
}

void Scheduler::end(Record& record, JobState state, std::vector<Ended>& ended) {
  ended.push_back({record.job.id, state});
  forget(record);
}

void Scheduler::enqueue(Record& record, bool is_new) {
  const Job& job = record.job;
  record.state = JobState::kQueued;
  if (is_new) {
    record.due = queue_.push_back(record.ticket, job.owner, record.left);
  } else {
    queue_.push_front(record.ticket, job.owner, record.left, record.due);
  }
  tickets_[record.ticket] = &record;
  Alike& alike = alike_[job.batch_key];
  alike.jobs.insert({record.due, record.ticket});
  alike.pictures += job.pictures;
  if (record.saved) {
    std::vector<Record*>& group = saved_[record.saved->run];
    group.insert(is_new ? group.end() : group.begin(), &record);
  }
  if (!job.deadline) return;
  deadlines_.insert({*job.deadline, record.ticket});
  last_begin_.insert({*job.deadline - record.left, record.ticket});
}

// Leaves it in the queue, which removes it in one of two ways.
void Scheduler::dequeue(Record& record) {
  const Job& job = record.job;
  tickets_.erase(record.ticket);
  const auto alike = alike_.find(job.batch_key);
  alike->second.jobs.erase({record.due, record.ticket});
  alike->second.pictures -= job.pictures;
  if (alike->second.jobs.empty()) alike_.erase(alike);
  if (record.saved) {
    const auto group = saved_.find(record.saved->run);
    std::erase(group->second, &record);
    if (group->second.empty()) saved_.erase(group);
  }
  if (!job.deadline) return;
  deadlines_.erase({*job.deadline, record.ticket});
  last_begin_.erase({*job.deadline - record.left, record.ticket});
}

std::optional<Refusal> Scheduler::refusal(const Job& job, Seconds now) const {
  using Reason = Refusal::Reason;
  if (is_draining_) return Refusal{.reason = Reason::kDraining};
  if (job.bytes > options_.max_bytes) return Refusal{.reason = Reason::kTooLarge};
  const auto of_owner = jobs_of_owner_.find(job.owner);
  std::optional<Reason> reason;
  if (of_owner != jobs_of_owner_.end() && of_owner->second >= options_.max_jobs_of_owner)
    reason = Reason::kOwnerFull;
  if (bytes_ + job.bytes > options_.max_bytes) reason = Reason::kBytesFull;
  if (size() >= options_.max_jobs) reason = Reason::kQueueFull;
  if (!reason) return std::nullopt;
  return Refusal{.reason = *reason, .retry_after = wait(queue_.ahead_of_new(job.owner, job.estimate), now)};
}

std::optional<Refusal> Scheduler::submit(const Job& job, Seconds now) {
  if (const std::optional<Refusal> why = refusal(job, now)) return why;
  Record& record = create(job);
  // A job that comes too late is not refused: it ends like others whose deadline has passed.
  if (job.deadline) record.job.deadline = std::max(*job.deadline, now);
  enqueue(record, true);
  return std::nullopt;
}

void Scheduler::restore(const Job& job, int crashes, std::optional<SavedStep> saved) {
  Record& record = create(job);
  record.crashes = crashes;
  if (saved) {
    next_run_ = std::max(next_run_, saved->run + 1);
    if (!saved->is_shared || !runs_alone(record)) record.saved = saved;
  }
  if (record.saved) record.left = left_from(job, record.saved->step);
  enqueue(record, true);
}

Cancelled Scheduler::cancel(std::string_view id) {
  const auto found = records_.find(std::string(id));
  if (found == records_.end()) return Cancelled::kHasNoEffect;
  Record& record = found->second;
  if (record.state == JobState::kRunning) {
    record.is_cancelled = true;
    return Cancelled::kAtNextStep;
  }
  if (record.state == JobState::kQueued) {
    dequeue(record);
    queue_.erase(record.ticket);
  }
  forget(record);
  return Cancelled::kAtOnce;
}

std::vector<std::string> Scheduler::expire(Seconds now) {
  std::vector<std::string> ids;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Record& record = *tickets_.at(deadlines_.begin()->second);
    ids.push_back(record.job.id);
    dequeue(record);
    queue_.erase(record.ticket);
    forget(record);
  }
  return ids;
}

void Scheduler::finished(std::string_view id) {
  const auto found = records_.find(std::string(id));
  if (found != records_.end() && found->second.state == JobState::kEncoding) forget(found->second);
}

int64_t Scheduler::open_worlds() const {
  return std::ranges::count_if(worlds_, [](const auto& each) { return !each.second.is_stopping; });
}

// If no world is ready, computes as if one were.
Seconds Scheduler::wait(const FairQueue::Ahead& ahead, Seconds now) const {
  Seconds work = std::max(ahead.work, Seconds(0));
  for (const auto& [id, run] : runs_) work += left(run);
  for (const auto& [id, world] : worlds_) {
    for (const auto& [run, end] : world.leaving) work += std::max(end - now, Seconds(0));
  }
  return work / static_cast<double>(std::max<int64_t>(open_worlds(), 1));
}

std::optional<Outlook> Scheduler::outlook(std::string_view id, Seconds now) const {
  const Record* record = find(id);
  if (record == nullptr || record->state != JobState::kQueued) return std::nullopt;
  const FairQueue::Ahead ahead = queue_.ahead(record->ticket);
  const Seconds begin = wait(ahead, now);
  return Outlook{.jobs_ahead = std::llround(ahead.jobs), .begins_in = begin, .ends_in = begin + record->left};
}

// Worlds.

void Scheduler::ready(WorldId world) {
  const bool is_new = worlds_.try_emplace(world).second;
  TESSERA_CHECK(is_new, "world {} is ready already", world);
}

void Scheduler::stop(WorldId world) {
  if (const auto found = worlds_.find(world); found != worlds_.end()) found->second.is_stopping = true;
}

bool Scheduler::is_idle(WorldId world) const {
  const auto found = worlds_.find(world);
  return found == worlds_.end() || (found->second.runs.empty() && found->second.leaving.empty());
}

void Scheduler::let_go(RunId run) {
  for (auto& [id, world] : worlds_) world.leaving.erase(run);
}

std::vector<Ended> Scheduler::lost(WorldId world) {
  std::vector<Ended> ended;
  const auto found = worlds_.find(world);
  if (found == worlds_.end()) return ended;
  const std::vector<RunId>& runs = found->second.runs;
  const std::vector<RunId> ids(runs.rbegin(), runs.rend());
  for (const RunId id : ids) {
    Run& run = runs_.at(id);
    for (Record* record : last_to_first(run.members)) {
      ++record->crashes;
      return_to_queue(*record, run, ended);
    }
    end_run(id);
  }
  worlds_.erase(world);
  return ended;
}

// Runs.

Seconds Scheduler::left(const Run& run) const {
  return run.charge * (static_cast<double>(run.end - run.done) / static_cast<double>(run.end - run.begin));
}

void Scheduler::advance(Run& run, int64_t steps) {
  const Seconds before = left(run);
  run.done = std::clamp(steps, run.done, run.end);
  queue_.advance(before - left(run));
}

// Charges the owner for those steps of the run that are useful.
void Scheduler::leave_run(Record& record, Run& run, int64_t useful_steps) {
  const double part = static_cast<double>(run.end - useful_steps) / static_cast<double>(run.end - run.begin);
  queue_.give_back(record.job.owner, record.charge * part);
  queue_.release(record.job.owner);
  run.charge -= record.charge;
  std::erase(run.members, &record);
  record.run = 0;
}

void Scheduler::end_run(RunId id) {
  std::erase(worlds_.at(runs_.at(id).world).runs, id);
  runs_.erase(id);
}

// The world continues with it to the end of the current step.
void Scheduler::drop_run(RunId id) {
  const Run& run = runs_.at(id);
  worlds_.at(run.world).leaving[id] = run.step_began + run.step;
  end_run(id);
}

// Unless this cancels it or makes it fail.
void Scheduler::return_to_queue(Record& record, Run& run, std::vector<Ended>& ended) {
  if (record.saved && record.saved->is_shared && (record.is_single || runs_alone(record))) record.saved = {};
  const int64_t step = record.saved ? record.saved->step : 0;
  leave_run(record, run, std::max(step, run.begin));
  if (record.is_cancelled) return end(record, JobState::kCancelled, ended);
  if (record.crashes >= kMaxCrashes) return end(record, JobState::kFailed, ended);
  record.left = left_from(record.job, step);
  enqueue(record, false);
}

void Scheduler::stepped(RunId id, int64_t steps, Seconds now) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  if (steps > run.done && now > run.step_began)
    run.step = (now - run.step_began) / static_cast<double>(steps - run.done);
  run.step_began = now;
  advance(run, std::min(steps, run.end - 1));
}

void Scheduler::saved(RunId id, int64_t step) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  for (Record* record : found->second.members)
    record->saved = SavedStep{.run = id, .step = step, .is_shared = found->second.is_shared};
}

void Scheduler::unsaved(RunId id) {
  for (auto& [number, run] : runs_) {
    for (Record* record : run.members) {
      if (record->saved && record->saved->run == id) record->saved = {};
    }
  }
  const auto found = saved_.find(id);
  if (found == saved_.end()) return;
  for (Record* record : last_to_first(found->second)) {
    dequeue(*record);
    queue_.erase(record->ticket);
    record->saved = {};
    record->left = record->job.estimate;
    enqueue(*record, false);
  }
}

std::vector<Ended> Scheduler::completed(RunId id) {
  std::vector<Ended> ended;
  const auto found = runs_.find(id);
  if (found == runs_.end()) return ended;
  Run& run = found->second;
  advance(run, run.end);
  const std::vector<Record*> members = run.members;
  for (Record* record : members) {
    leave_run(*record, run, run.end);
    record->state = JobState::kEncoding;
    if (record->is_cancelled) end(*record, JobState::kCancelled, ended);
  }
  end_run(id);
  return ended;
}

std::vector<Ended> Scheduler::failed(RunId id, bool lacks_memory) {
  std::vector<Ended> ended;
  const auto found = runs_.find(id);
  if (found == runs_.end()) return ended;
  Run& run = found->second;
  if (run.members.size() > 1 && lacks_memory) {
    int64_t pictures = 0;
    for (const Record* record : run.members) pictures += record->job.pictures;
    curves_[run.members.front()->job.batch_key].lacks_memory(pictures);
  }
  for (Record* record : last_to_first(run.members)) {
    if (run.is_shared) {
      record->is_single = true;
      return_to_queue(*record, run, ended);
    } else {
      leave_run(*record, run, run.done);
      end(*record, record->is_cancelled ? JobState::kCancelled : JobState::kFailed, ended);
    }
  }
  end_run(id);
  return ended;
}

void Scheduler::measured(const std::string& batch_key, int64_t pictures, Seconds step) {
  if (curves_.size() >= kMaxCurves && !curves_.contains(batch_key)) curves_.erase(curves_.begin());
  curves_[batch_key].add(pictures, step);
}

}  // namespace tessera::serve
