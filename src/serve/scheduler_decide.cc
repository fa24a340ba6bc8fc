// What a world does between two steps.
#include <algorithm>
#include <limits>
#include <utility>

#include "serve/scheduler.h"

namespace tessera::serve {
namespace {

// How many jobs are examined for one that may begin before its turn.
constexpr int kMaxLooks = 64;

}  // namespace

Decision Scheduler::decide(WorldId id, Seconds now) {
  Decision decision;
  const auto found = worlds_.find(id);
  if (found == worlds_.end()) return decision;
  decision.unstarted = expire(now);
  World& world = found->second;
  end_members(world, now, decision);
  if (is_draining_ || world.is_stopping) return decision;
  make_room(id, world, now, decision);
  while (has_room(world)) {
    Record* next = choose(id, now);
    if (next == nullptr || !fits(world, *next)) break;
    begin(id, world, *next, now, decision);
  }
  return decision;
}

void Scheduler::end_members(World& world, Seconds now, Decision& decision) {
  const std::vector<RunId> ids = world.runs;
  for (const RunId id : ids) {
    Run& run = runs_.at(id);
    const std::vector<Record*> members = run.members;
    for (Record* record : members) {
      const bool is_late = record->job.deadline && *record->job.deadline <= now;
      if (!record->is_cancelled && !is_late) continue;
      leave_run(*record, run, run.done);
      end(*record, record->is_cancelled ? JobState::kCancelled : JobState::kExpired, decision.ended);
    }
    if (!run.members.empty()) continue;
    decision.dropped.push_back(id);
    drop_run(id);
  }
}

bool Scheduler::has_room(const World& world) const {
  return static_cast<int64_t>(world.runs.size() + world.leaving.size()) < options_.max_runs;
}

// Whether a job can begin beside the runs of a world, not counting one that is about to leave.
bool Scheduler::fits(const World& world, const Record& record, RunId without) const {
  return std::ranges::all_of(world.runs, [&](RunId id) {
    if (id == without) return true;
    const Record& other = *runs_.at(id).members.front();
    return record.job.may_join && other.job.may_join && !runs_alone(record) && !runs_alone(other) &&
           record.job.batch_key == other.job.batch_key;
  });
}

// When one of the worlds, except one, can take another run.
Seconds Scheduler::soonest_end(WorldId except, Seconds now) const {
  Seconds soonest = kNever;
  for (const auto& [id, world] : worlds_) {
    if (id == except || world.is_stopping) continue;
    if (has_room(world)) return Seconds(0);
    for (const RunId run : world.runs) soonest = std::min(soonest, left(runs_.at(run)));
    for (const auto& [run, end] : world.leaving) soonest = std::min(soonest, std::max(end - now, Seconds(0)));
  }
  return soonest;
}

// The job that misses its deadline if it waits until `end`, but not if it begins now; nullptr if there is
// none, or if its owner has already had too much.
Scheduler::Record* Scheduler::urgent(Seconds now, Seconds end) {
  int looks = 0;
  for (auto each = last_begin_.lower_bound({now, std::numeric_limits<FairQueue::Ticket>::min()});
       each != last_begin_.end() && each->first < end && looks < kMaxLooks; ++each, ++looks) {
    if (queue_.may_go_first(each->second, options_.quantum)) return tickets_.at(each->second);
  }
  return nullptr;
}

Scheduler::Record* Scheduler::choose(WorldId id, Seconds now) {
  if (const auto made = std::exchange(worlds_.at(id).next, std::nullopt)) {
    if (const auto found = tickets_.find(*made); found != tickets_.end()) return found->second;
  }
  const std::optional<FairQueue::Ticket> ticket = queue_.next(options_.quantum);
  if (!ticket) return nullptr;
  Record* next = tickets_.at(*ticket);
  if (queue_.is_overdue(next->due)) return next;
  Record* before = urgent(now, now + std::min(next->left, soonest_end(id, now)));
  return before == nullptr ? next : before;
}

// Whether a run can be continued later, after a job of `extra` seconds.
bool Scheduler::may_make_room(const Run& run, Seconds extra, Seconds now) const {
  const Seconds end = now + extra + left(run);
  return std::ranges::all_of(run.members, [&](const Record* record) {
    return record->job.may_be_saved && !queue_.is_overdue(record->due) &&
           (!record->job.deadline || end <= *record->job.deadline);
  });
}

// The job for which a run makes room; nullptr if there is none.
Scheduler::Record* Scheduler::choose_instead(const Run& run, Seconds now, Seconds end) {
  const std::optional<FairQueue::Ticket> ticket = queue_.next(options_.quantum);
  if (!ticket) return nullptr;
  Record* next = tickets_.at(*ticket);
  if (!queue_.is_overdue(next->due)) {
    if (Record* before = urgent(now, end); before != nullptr) return before;
  }
  return queue_.tag(*ticket) + options_.quantum < run.tag ? next : nullptr;
}

void Scheduler::make_room(WorldId id, World& world, Seconds now, Decision& decision) {
  if (queue_.size() == 0 || has_room(world) || !world.leaving.empty()) return;
  Seconds end = soonest_end(id, now);
  if (end == Seconds(0)) return;  // another world has room
  RunId longest = world.runs.front();
  for (const RunId each : world.runs) {
    end = std::min(end, left(runs_.at(each)));
    if (left(runs_.at(each)) > left(runs_.at(longest))) longest = each;
  }
  Run& run = runs_.at(longest);
  Record* other = choose_instead(run, now, now + end);
  if (other == nullptr || other->left >= left(run)) return;
  if (!fits(world, *other, longest) || !may_make_room(run, other->left, now)) return;

  for (Record* record : last_to_first(run.members)) {
    record->saved = SavedStep{.run = longest, .step = run.done, .is_shared = run.is_shared};
    return_to_queue(*record, run, decision.ended);
  }
  drop_run(longest);
  decision.set_aside = longest;
  world.next = other->ticket;
}

void Scheduler::take(Record& record, std::vector<Record*>& batch) {
  dequeue(record);
  record.state = JobState::kRunning;
  record.charge = record.left;
  queue_.take(record.ticket);
  batch.push_back(&record);
}

// The jobs that may share a run with one that begins, in the order in which they are due.
std::vector<Scheduler::Record*> Scheduler::candidates(const Record& head) const {
  std::vector<Record*> result;
  for (const auto& [due, ticket] : alike_.at(head.job.batch_key).jobs) {
    if (result.size() >= kMaxLooks) break;
    Record* record = tickets_.at(ticket);
    const bool is_bound = record->saved || record->is_single || runs_alone(*record);
    if (record != &head && !is_bound && record->job.may_join == head.job.may_join) result.push_back(record);
  }
  return result;
}

// Takes a job that begins out of the queue, and with it those that share its run.
std::vector<Scheduler::Record*> Scheduler::take_batch(Record& head, Seconds now) {
  std::vector<Record*> batch;
  if (head.saved) {
    const std::vector<Record*> group = saved_.at(head.saved->run);
    for (Record* record : group) take(*record, batch);
    return batch;
  }
  const auto curve = curves_.find(head.job.batch_key);
  if (curve == curves_.end() || head.is_single || runs_alone(head)) {
    take(head, batch);
    return batch;
  }
  const int64_t most = curve->second.best(alike_.at(head.job.batch_key).pictures, options_.max_pictures);
  const std::vector<Record*> others = candidates(head);
  take(head, batch);
  int64_t pictures = head.job.pictures;
  Seconds work = head.left, latest = head.job.deadline.value_or(kNever);
  for (Record* record : others) {
    const int64_t all = pictures + record->job.pictures;
    if (all > most || !queue_.may_go_first(record->ticket, options_.quantum)) continue;
    const Seconds sum = work + record->left,
                  deadline = std::min(latest, record->job.deadline.value_or(kNever));
    if (now + sum * (curve->second.ratio(all) / static_cast<double>(all)) > deadline) continue;
    take(*record, batch);
    pictures = all, work = sum, latest = deadline;
  }
  return batch;
}

void Scheduler::begin(WorldId id, World& world, Record& head, Seconds now, Decision& decision) {
  const RunId run_id = next_run_++;
  Decision::Start start{.run = run_id, .saved = head.saved};
  Run run{.world = id, .begin = head.saved ? head.saved->step : 0, .tag = queue_.tag(head.ticket)};
  run.members = take_batch(head, now);
  run.is_shared = run.members.size() > 1 || (head.saved && head.saved->is_shared);
  run.done = run.begin;
  run.step_began = now;
  int64_t pictures = 0;
  for (const Record* record : run.members) pictures += record->job.pictures;
  const auto curve = curves_.find(head.job.batch_key);
  double share = 1;
  if (run.members.size() > 1 && curve != curves_.end())
    share = curve->second.ratio(pictures) / static_cast<double>(pictures);
  for (Record* record : run.members) {
    record->run = run_id;
    record->charge = record->left * share;
    queue_.give_back(record->job.owner, record->left - record->charge);
    run.charge += record->charge;
    run.end = std::max(run.end, record->job.steps + 1);
    start.jobs.push_back(record->job.id);
  }
  // It may have been saved after the last step of the jobs that remain.
  run.begin = run.done = std::min(run.begin, run.end - 1);
  run.step = run.charge / static_cast<double>(run.end - run.begin);
  world.runs.push_back(run_id);
  runs_.emplace(run_id, std::move(run));
  decision.begun.push_back(std::move(start));
}

}  // namespace tessera::serve
