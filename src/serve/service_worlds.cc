// Worlds and what they do: runs begin, stop, continue elsewhere and end.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "serve/service_parts.h"

namespace tessera::serve {
namespace {

using OrderKind = WorldOrder::Kind;

// An idle world sends a sign of life every second, and a denoising one reports every step.
constexpr Seconds kMostSilence{10};
constexpr double kMostSteps = 5;
// The work before and after the steps, such as reading a text encoder from disk, reports nothing.
constexpr Seconds kMostSilenceElsewhere{600};
// Loading weights reports nothing either: this is how many bytes a slow disk reads in a second.
constexpr double kSlowestDisk = 20e6;
// Silence does not count if this process itself was stopped.
constexpr Seconds kStandstill{2};

constexpr Seconds kLookInterval{1};
constexpr Seconds kCleaningInterval{60};

}  // namespace

void Service::add_world(WorldId id, std::unique_ptr<WorldLink> link, int64_t restarts) {
  if (worlds_.contains(id)) lose_world(id, "another process has taken its place");
  World& world = worlds_[id];
  world.link = std::move(link);
  world.restarts = restarts;
  world.heard = now();
  // It may be working for the previous front, whose clients are gone.
  send(world, plain_order(OrderKind::kDropAll));
}

// A world that is gone is detected by reading from it.
void Service::send(World& world, const WorldOrder& order) {
  try {
    world.link->send(order);
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

void Service::read_world(WorldId id) {
  try {
    while (true) {
      const auto found = worlds_.find(id);
      if (found == worlds_.end()) return;
      std::optional<WorldEvent> event = found->second.link->read();
      if (!event) return;
      handle(id, std::move(*event));
    }
  } catch (const Error& error) {
    lose_world(id, error.what());
  }
}

void Service::handle(WorldId id, WorldEvent event) {
  using Kind = WorldEvent::Kind;
  World& world = worlds_.at(id);
  world.heard = now();
  if (event.kind == Kind::kReady) {
    world.ranks = event.ranks;
    world.weights_bytes = event.weights_bytes;
    memory_.hold_by_others(static_cast<uint64_t>((options_.worlds - 1) * world.ranks) * world.weights_bytes);
    if (!world.is_ready) became_ready(id, world);
    return;
  }
  if (event.kind == Kind::kBegun) {
    if (const auto leaving = world.leaving.find(event.run); leaving != world.leaving.end())
      leaving->second = kMostSilenceElsewhere;  // it had to be dropped as it began
  }
  if (event.kind == Kind::kDropped) return let_go(id, world, event.run);
  if (event.kind == Kind::kSaved) return run_saved(event.run, std::move(event));
  const auto found = runs_.find(event.run);
  if (found == runs_.end() || found->second.world != id) return;
  Run& run = found->second;
  switch (event.kind) {
    case Kind::kBegun:
      run.is_begun = true;
      return;
    case Kind::kStep:
      return step_done(event.run, run, event);
    case Kind::kPreview:
      return previewed(run, std::move(event));
    case Kind::kPicture:
    case Kind::kFrames:
      return pictured(run, std::move(event));
    case Kind::kWarning:
      return warned(run, event);
    case Kind::kEnded:
      return run_ended(event.run, event.seconds);
    case Kind::kFailed:
      return run_failed(event.run, event);
    default:
      return;
  }
}

void Service::world_loaded(WorldId id) {
  const auto found = worlds_.find(id);
  if (found == worlds_.end()) return;
  found->second.is_loaded = true;
  found->second.heard = now();
}

void Service::became_ready(WorldId id, World& world) {
  world.is_loaded = world.is_ready = true;
  scheduler_.ready(id);
  decide(id);
}

void Service::lose_world(WorldId id, const std::string& why) {
  const auto found = worlds_.find(id);
  if (found == worlds_.end()) {
    if (const auto loss = losses_.find(id); loss != losses_.end())
      loss->second.why = why;  // the better informed reason
    return;
  }
  log_warning("world {} is lost: {}", id, why);
  losses_[id] = {.why = why, .restarts = found->second.restarts};
  metrics_->worlds_lost.add();
  worlds_.erase(found);
  const std::vector<Ended> ended = scheduler_.lost(id);
  std::vector<RunId> runs;
  for (const auto& [run_id, run] : runs_) {
    if (run.world == id) runs.push_back(run_id);
  }
  std::vector<JobPtr> queued;
  for (const RunId run_id : runs) {
    for (const JobPtr& job : back_to_queue(run_id)) queued.push_back(job);
  }
  for (const Ended& each : ended) {
    const JobPtr job = live(each.id);
    if (job && each.state == JobState::kFailed) {
      ++job->view.attempts;
      job->why = JobError{.code = "crashed",
                          .message =
                              "the processes that worked on it have ended too often; the server's log "
                              "says why"};
    }
    end(each);
  }
  tell_states(queued);
  std::vector<RunId> missing;
  for (const auto& [run_id, saved] : saved_) {
    if (saved.expected_from == id) missing.push_back(run_id);
  }
  for (const RunId run_id : missing) {
    if (const auto saved = saved_.find(run_id); saved != saved_.end()) give_up_saved(run_id, saved->second);
  }
  decide_all();
}

// Removes a run, and returns those of its jobs that the scheduler has put back into the queue.
std::vector<Service::JobPtr> Service::back_to_queue(RunId id) {
  std::vector<JobPtr> jobs;
  const Run run = std::move(runs_.at(id));
  runs_.erase(id);
  for (const Slot& slot : run.slots) {
    const JobPtr job = live(slot.id);
    if (!job || job->run != id || !scheduler_.state(slot.id)) continue;
    job->run.reset();
    JobView& view = job->view;
    view.state = JobState::kQueued;
    view.attempts = scheduler_.crashes(slot.id);
    encoder_->forget(slot.id);
    if (view.request.is_stored)
      journal_->record({.id = slot.id, .state = view.state, .attempts = view.attempts, .error = {}});
    jobs.push_back(job);
  }
  return jobs;
}

void Service::tell_states(const std::vector<JobPtr>& jobs) {
  for (const JobPtr& job : jobs) {
    if (!job->has_ended()) tell(job, JobUpdate::Kind::kState);
  }
}

// Deciding.

void Service::decide_all() {
  std::vector<WorldId> ready;
  for (const auto& [id, world] : worlds_) {
    if (world.is_ready) ready.push_back(id);
  }
  for (const WorldId id : ready) decide(id);
}

void Service::decide(WorldId id) {
  const auto found = worlds_.find(id);
  if (found == worlds_.end()) return;
  const Decision decision = scheduler_.decide(id, now());
  // Followers are informed after the orders, which belong together, because they may act on it.
  std::vector<JobPtr> changed;
  for (const RunId run : decision.dropped) {
    drop_run(found->second, run);
    runs_.erase(run);
  }
  if (decision.set_aside) changed = set_aside(found->second, *decision.set_aside);
  for (const Decision::Start& each : decision.begun) {
    for (const JobPtr& job : start(id, each)) changed.push_back(job);
  }
  tell_states(changed);
  for (const Ended& each : decision.ended) end(each);
  for (const std::string& each : decision.unstarted) end(Ended{.id = each, .state = JobState::kExpired});
}

// The next jobs wait until the world has ended the current step.
void Service::drop_run(World& world, RunId id) {
  send(world, plain_order(OrderKind::kDrop, id));
  world.leaving[id] = most_silence(runs_.at(id));
}

void Service::let_go(WorldId id, World& world, RunId run) {
  if (world.leaving.erase(run) == 0) return;  // from the previous front
  scheduler_.let_go(run);
  decide(id);
}

std::vector<Service::JobPtr> Service::set_aside(World& world, RunId id) {
  const Run& run = runs_.at(id);
  Saved& saved = saved_[id];
  saved.slots = run.slots;
  saved.requests = run.requests;
  saved.bytes = nullptr;
  saved.expected_from = run.world;
  for (const Slot& slot : run.slots) {
    if (const JobPtr job = live(slot.id); job && job->run == id) use_saved(*job, id);
  }
  send(world, plain_order(OrderKind::kSave, id));
  drop_run(world, id);
  return back_to_queue(id);
}

Service::Run Service::make_run(WorldId id, const Decision::Start& start, const Saved* saved) {
  Run run{.world = id};
  if (saved != nullptr) {
    run.slots = saved->slots;
    run.requests = saved->requests;
  } else {
    for (const std::string& each : start.jobs) {
      const LiveJob& job = *jobs_.at(each);
      run.slots.push_back({.id = each, .pictures = job.view.pictures});
      run.requests.push_back(write_fields(engine::request_fields(), job.view.request.request).dump());
    }
  }
  for (const Slot& slot : run.slots) run.pictures += slot.pictures;
  for (const std::string& each : start.jobs) {
    const LiveJob& job = *jobs_.at(each);
    run.batch_key = job.batch_key;
    run.work += job.work;
    run.steps = std::max(run.steps, job.view.steps);
    run.is_saveable &= job.may_be_saved;
  }
  run.done = start.saved ? start.saved->step : 0;
  run.is_shared = run.slots.size() > 1;
  run.began = run.saved_at = now();
  return run;
}

std::vector<Service::JobPtr> Service::start(WorldId id, const Decision::Start& start) {
  auto saved = start.saved ? saved_.find(start.saved->run) : saved_.end();
  Run run = make_run(id, start, saved == saved_.end() ? nullptr : &saved->second);
  run.preview_every = watched_every(run);
  metrics_->batch_size.observe(static_cast<double>(start.jobs.size()));
  runs_[start.run] = std::move(run);
  std::vector<JobPtr> jobs;
  for (const std::string& each : start.jobs) {
    const JobPtr job = jobs.emplace_back(jobs_.at(each));
    job->run = start.run;
    if (saved == saved_.end()) release_saved(*job);
    if (!job->view.started) {
      job->view.started = std::max(hooks_.wall_clock(), job->view.accepted);
      metrics_->queue_seconds.observe((now() - job->created).count());
    }
    job->view.state = JobState::kRunning;
    job->view.outlook.reset();
    job->view.step = start.saved ? start.saved->step : 0;
  }
  if (saved != saved_.end() && saved->second.expected_from) {
    saved->second.waiting = start.run;
  } else {
    order_run(start.run, saved == saved_.end() ? nullptr : saved->second.bytes);
  }
  for (const JobPtr& job : jobs) encoder_->expect(job->id(), job->view.request.request);
  return jobs;
}

void Service::order_run(RunId id, const std::shared_ptr<const std::string>& saved) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  const Run& run = found->second;
  WorldOrder order = plain_order(saved ? OrderKind::kResume : OrderKind::kBegin, id);
  order.requests = run.requests;
  if (saved) order.saved = *saved;
  order.preview_every = run.preview_every;
  if (const auto world = worlds_.find(run.world); world != worlds_.end()) send(world->second, order);
}

// Saved runs.

void Service::use_saved(LiveJob& job, RunId run) {
  if (job.saved == run) return;
  release_saved(job);
  job.saved = run;
  ++saved_[run].users;
}

void Service::release_saved(LiveJob& job) {
  if (!job.saved) return;
  const auto found = saved_.find(*std::exchange(job.saved, std::nullopt));
  if (found != saved_.end() && --found->second.users == 0 && !found->second.waiting) saved_.erase(found);
}

// The bytes do not come, so the jobs start over.
void Service::give_up_saved(RunId id, Saved& saved) {
  saved.expected_from.reset();
  const std::optional<RunId> waiting = std::exchange(saved.waiting, std::nullopt);
  scheduler_.unsaved(id);
  const std::vector<Slot> slots = saved.slots;
  if (waiting) order_run(*waiting, nullptr);
  for (const Slot& slot : slots) {
    if (const JobPtr job = live(slot.id); job && job->saved == id) release_saved(*job);
  }
  saved_.erase(id);
}

void Service::run_saved(RunId id, WorldEvent event) {
  metrics_->saves.add();
  const auto bytes = std::make_shared<const std::string>(std::move(event.saved));
  if (const auto found = saved_.find(id); found != saved_.end() && found->second.expected_from) {
    Saved& saved = found->second;
    saved.expected_from.reset();
    saved.bytes = bytes;
    if (const auto waiting = std::exchange(saved.waiting, std::nullopt)) order_run(*waiting, bytes);
    if (saved.users == 0) saved_.erase(found);
    return;
  }
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  run.saving_since.reset();
  run.saved_at = now();
  saved_[id] = Saved{.slots = run.slots, .requests = run.requests, .bytes = bytes, .users = saved_[id].users};
  scheduler_.saved(id, run.done);
  std::vector<std::string> stored;
  bool has_files = false;
  for (const Slot& slot : run.slots) {
    const JobPtr job = live(slot.id);
    if (!job || job->run != id) continue;
    use_saved(*job, id);
    if (job->view.request.is_stored) stored.push_back(slot.id);
    has_files |= !job->files.empty();
  }
  // Finished pictures are not on disk: a later process begins before them.
  if (saved_.at(id).users == 0) {
    saved_.erase(id);
  } else if (!stored.empty() && !has_files) {
    SavedRunFile head{.slots = run.slots, .requests = run.requests};
    if (run.longest > Seconds(0)) head.seconds_per_work = estimates_.step(run.batch_key, 1).count();
    journal_->save_step(stored, run.done, write_saved_head(head), bytes);
  }
}

// Time.

void Service::tick() {
  const Seconds time = now();
  if (time - last_tick_ > kStandstill) {
    for (auto& [id, world] : worlds_) world.heard = time;
  }
  last_tick_ = time;
  for (auto& [id, world] : worlds_) {
    try {
      world.link->flush();
    } catch (const Error&) {  // read_world() will notice
    }
  }
  for (const std::string& each : scheduler_.expire(time)) end(Ended{.id = each, .state = JobState::kExpired});
  decide_all();
  check_silence();
  tell_places();
  if (time - last_look_ >= kLookInterval) {
    last_look_ = time;
    end_orphans();
    std::vector<RunId> runs;
    for (const auto& [id, run] : runs_) runs.push_back(id);
    for (const RunId id : runs) watch_run(id);
  }
  if (time - last_cleaning_ >= kCleaningInterval) {
    last_cleaning_ = time;
    journal_->remove_expired();
  }
}

// The first step shows how long steps are.
Seconds Service::most_silence(const Run& run) {
  if (!run.is_begun) return kMostSilence;
  const bool is_known = run.is_denoising && run.longest > Seconds(0);
  return is_known ? kMostSteps * run.longest : kMostSilenceElsewhere;
}

// In addition to what its runs may take.
Seconds Service::most_silence(const World& world) const {
  if (!world.is_loaded)
    return kMostSilenceElsewhere + Seconds(static_cast<double>(memory_.weights()) / kSlowestDisk);
  return world.is_ready ? kMostSilence : kMostSilenceElsewhere;
}

void Service::check_silence() {
  for (auto& [id, world] : worlds_) {
    if (world.is_replaced) continue;
    Seconds most = most_silence(world);
    for (const auto& [run_id, run] : runs_) {
      if (run.world == id) most = std::max(most, most_silence(run));
    }
    for (const auto& [run_id, of_run] : world.leaving) most = std::max(most, of_run);
    const Seconds silence = now() - world.heard;
    if (silence <= most) continue;
    world.is_replaced = true;
    hooks_.replace(id, fmt::format("has been silent for {:.0f} s{}", silence.count(),
                                   world.is_loaded ? "" : ", in which it should have loaded"));
  }
}

}  // namespace tessera::serve
