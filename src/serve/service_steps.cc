// Steps of runs, how long they take, and how runs end.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "serve/service_parts.h"

namespace tessera::serve {
namespace {

// A run is saved at most every 2 s, so a lost world costs about that much. To save a run, its world gathers
// and writes the bytes, which takes a few ms for each MB and each message. This must stay below 1 % of the
// time between two saves, even for videos with latents of 100 MB.
constexpr Seconds kSaveInterval{2};
constexpr double kSaveShare = 0.01;
constexpr Seconds kSaveTime{2e-3};
constexpr double kSavedBytesPerSecond = 500e6;

JobError error_of(const WorldEvent& event, const engine::Request& request, const engine::Model& model) {
  const auto kind = static_cast<ErrorKind>(event.exit_code);
  if (kind == ErrorKind::kMemory)
    return {.code = "out_of_memory", .message = "there is too little memory for this request", .status = 503};
  const std::string message = without_paths(event.message, request, model);
  const auto names = [&](const std::string& file) { return event.message.find(file) != std::string::npos; };
  const bool is_of_upload =
      std::ranges::any_of(request.images, names) || std::ranges::any_of(request.video.reference_paths, names);
  if (kind == ErrorKind::kUsage || (kind == ErrorKind::kInput && is_of_upload))
    return {.code = "invalid_value", .message = spell(message), .status = 400};
  return {.code = "failed", .message = "the run has failed; the server's log says why", .status = 500};
}

}  // namespace

void Service::step_done(RunId id, Run& run, const WorldEvent& event) {
  measure_step(id, run, event);
  // The world counts the steps of all groups of pictures.
  run.done = event.steps > 0 ? event.step * run.steps / event.steps : 0;
  run.is_denoising = event.step < event.steps;
  scheduler_.stepped(id, run.done, now());
  const std::vector<Slot> slots = run.slots;
  for (const Slot& slot : slots) {
    const JobPtr job = live(slot.id);
    if (!job || job->run != id) continue;
    job->view.step = std::min(run.done, job->view.steps);
    tell(job, JobUpdate::Kind::kStep);
  }
  const auto found = runs_.find(id);  // followers may have ended it
  if (found == runs_.end()) return;
  save_if_due(id, found->second);
  decide(found->second.world);
}

void Service::measure_step(RunId id, Run& run, const WorldEvent& event) {
  const Seconds time = now();
  if (run.counted && event.step > *run.counted && run.is_denoising) {
    const Seconds step = (time - run.counted_at) / static_cast<double>(event.step - *run.counted);
    if (run.denoised == Seconds(0)) {
      for (const Slot& slot : run.slots) {
        if (const JobPtr job = live(slot.id); job && job->run == id)
          metrics_->first_step_seconds.observe((time - job->created).count());
      }
    }
    run.denoised += time - run.counted_at;
    run.longest = std::max(run.longest, step);
    // A run that divides its pictures into groups takes this many steps for one step of each picture.
    const Seconds all = step * (static_cast<double>(event.steps) / static_cast<double>(run.steps));
    if (step > Seconds(0)) {
      scheduler_.measured(run.batch_key, run.pictures, all);
      estimates_.add_step(run.batch_key, run.work, all);
    }
    metrics_->steps.add(static_cast<double>(event.step - *run.counted));
    metrics_->step_seconds.observe({std::to_string(run.pictures)}, step.count());
  }
  run.counted = event.step;
  run.counted_at = time;
}

void Service::save_if_due(RunId id, Run& run) {
  if (!run.is_saveable || !run.is_denoising || run.done == 0) return;
  if (run.saving_since) {
    // The answer comes before the next step, or never.
    if (run.done > *run.saving_since + 2) run.is_saveable = false;
    return;
  }
  if (const auto saved = saved_.find(id); saved != saved_.end() && saved->second.bytes) {
    const Seconds cost =
        kSaveTime + Seconds(static_cast<double>(saved->second.bytes->size()) / kSavedBytesPerSecond);
    run.save_interval = cost / kSaveShare;
  }
  if (now() - run.saved_at < std::max(run.save_interval, kSaveInterval)) return;
  const auto world = worlds_.find(run.world);
  if (world == worlds_.end()) return;
  run.saving_since = run.done;
  send(world->second, plain_order(WorldOrder::Kind::kSave, id));
}

// A warning of a run may contain a prompt. If strangers share the run, only the server's log gets it.
void Service::warned(const Run& run, const WorldEvent& event) {
  if (run.is_shared) return;
  const JobPtr job = live(run.slots.front().id);
  if (!job) return;
  JobView& view = job->view;
  std::string warning = spell(without_paths(event.message, view.request.request, options_.base.model));
  if (std::ranges::find(view.warnings, warning) != view.warnings.end()) return;
  view.warnings.push_back(std::move(warning));
  if (view.request.is_stored) journal_->rewrite(job->id(), write_stored_job(view));
}

void Service::run_ended(RunId id, engine::Seconds seconds) {
  // The time that rank 0 took to deliver the pictures, which replaces writing files.
  seconds.total -= std::exchange(seconds.write, 0);
  Run run = std::move(runs_.at(id));
  runs_.erase(id);
  const Seconds rest = now() - run.began - run.denoised;
  if (rest > Seconds(0)) estimates_.add_rest(run.batch_key, run.work, rest);
  std::vector<JobPtr> jobs;
  for (const Slot& slot : run.slots) {
    if (const JobPtr job = live(slot.id); job && job->run == id) jobs.push_back(job);
  }
  const std::vector<Ended> ended = scheduler_.completed(id);
  decide(run.world);  // so that the world has its next run before anything else is done
  for (const Ended& each : ended) end(each);
  for (const JobPtr& job : jobs) {
    if (job->has_ended()) continue;
    job->run.reset();
    job->view.state = JobState::kEncoding;
    job->view.step = job->view.steps;
    job->view.seconds = seconds;
    tell(job, JobUpdate::Kind::kState);
    if (!job->has_ended()) finish(job);
  }
}

void Service::run_failed(RunId id, const WorldEvent& event) {
  const WorldId world = runs_.at(id).world;
  log_warning("world {}: a run has failed: {}", world, spell(event.message));
  const std::vector<Slot> slots = runs_.at(id).slots;
  for (const Slot& slot : slots) {
    if (const JobPtr job = live(slot.id); job && job->run == id && !job->why)
      job->why = error_of(event, job->view.request.request, options_.base.model);
  }
  const std::vector<Ended> ended =
      scheduler_.failed(id, event.exit_code == static_cast<int>(ErrorKind::kMemory));
  for (const Ended& each : ended) end(each);
  for (const Slot& slot : slots) {  // those that begin again, alone
    if (const JobPtr job = live(slot.id)) job->why.reset();
  }
  tell_states(back_to_queue(id));
  decide(world);
}

std::optional<std::pair<Service::JobPtr, int64_t>> Service::picture_of(const Run& run, int64_t index) const {
  for (const Slot& slot : run.slots) {
    if (index >= slot.pictures) {
      index -= slot.pictures;
      continue;
    }
    const JobPtr job = index >= 0 ? live(slot.id) : nullptr;
    return job ? std::optional(std::pair(job, index)) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace tessera::serve
