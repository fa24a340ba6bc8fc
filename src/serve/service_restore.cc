// What an earlier process has left, and how that is measured.
#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "serve/service_parts.h"

namespace tessera::serve {

void Service::restore(const JournalJob& stored, std::map<std::filesystem::path, RunId>& saved) {
  const std::string id = stored.submission.id;
  const auto fail = [&](const JobError& error) {
    journal_->record({.id = id,
                      .state = JobState::kFailed,
                      .attempts = stored.attempts,
                      .error = write_job_error(error),
                      .started = stored.started});
  };
  try {
    JobView view = serve::view_of(stored, {});
    const std::variant<Admitted, JobRefusal> admitted = admit(view.request, options_.base, options_.limits);
    // Happens, for example, if the previous process had another model.
    if (const auto* refused = std::get_if<JobRefusal>(&admitted)) {
      JobError error = refused->error;
      error.message = spell(error.message);
      return fail(error);
    }
    const JobPtr job = create(view.request, std::get<Admitted>(admitted));
    job->view.id = id;
    job->view.accepted = stored.submission.accepted;
    job->view.started = stored.started;
    job->view.attempts = stored.attempts;
    job->view.warnings = view.warnings;  // the stored choices do not cause any
    job->deadline = stored.submission.deadline;
    if (view.request.is_awaited) job->orphaned = now();
    remember(*job);
    jobs_[id] = job;
    const std::optional<SavedStep> step = restore_saved(stored, *job, saved);
    scheduler_.restore(scheduled(*job), stored.attempts, step);
    restored_.emplace_back(job, std::get<Admitted>(admitted));
  } catch (const std::exception& error) {
    log_warning("job {} of the journal cannot go on: {}", id, error.what());
    fail({.code = "failed", .message = "the server that was started since cannot read this job"});
  }
}

// The machine may have less memory than when they were accepted. Jobs that have begun are left to their runs.
void Service::look_at_restored() {
  for (; !restored_.empty(); restored_.pop_front()) {
    const auto& [job, admitted] = restored_.front();
    const auto lack = memory_.known(admitted);
    if (!lack) break;
    if (!lack->empty() && job->view.state == JobState::kQueued &&
        scheduler_.cancel(job->id()) == Cancelled::kAtOnce)
      end(job, JobState::kFailed, JobError{.code = "out_of_memory", .message = *lack, .status = 400});
  }
  if (restored_.empty()) return;
  encoder_->run([this, held = memory_.held_by_others(), admitted = restored_.front().second] {
    const MemoryGate::Lack lack = memory_.look(admitted, held);
    hooks_.post([this, lack, held, admitted] {
      memory_.keep(admitted, lack, held);
      look_at_restored();
    });
  });
}

// Jobs that shared a run share one file.
std::optional<SavedStep> Service::restore_saved(const JournalJob& stored, LiveJob& job,
                                                std::map<std::filesystem::path, RunId>& saved) {
  if (stored.saved_file.empty()) return std::nullopt;
  try {
    const auto [found, is_new] =
        saved.try_emplace(stored.saved_file, options_.scheduler.first_run + static_cast<RunId>(saved.size()));
    const RunId run = found->second;
    if (is_new) {
      SavedRunFile file = read_saved_file(stored.saved_file);
      // So that estimates do not begin anew with the process.
      if (file.seconds_per_work > 0) estimates_.add_step(job.batch_key, 1, Seconds(file.seconds_per_work));
      saved_[run] = {.slots = std::move(file.slots),
                     .requests = std::move(file.requests),
                     .bytes = std::make_shared<const std::string>(std::move(file.saved))};
    }
    const auto at = saved_.find(run);
    if (at == saved_.end()) return std::nullopt;  // the file could not be read
    use_saved(job, run);
    job.view.step = stored.saved_step;
    return SavedStep{.run = run, .step = stored.saved_step, .is_shared = at->second.slots.size() > 1};
  } catch (const Error& error) {
    log_warning("{}", error.what());
    return std::nullopt;
  }
}

Service::Families::Families(Metrics& metrics)
    : jobs(metrics.counter("tessera_jobs_total", "Jobs that have ended.", {"api", "state"})),
      jobs_queued(metrics.gauge("tessera_jobs_queued", "Jobs that wait.")),
      jobs_running(metrics.gauge("tessera_jobs_running", "Jobs that run or are being encoded.")),
      queue_seconds(metrics.histogram("tessera_queue_seconds", "From a job's acceptance to its beginning.",
                                      {0.001, 0.01, 0.1, 1, 10, 60, 600})),
      first_step_seconds(metrics.histogram("tessera_first_step_seconds",
                                           "From a job's acceptance to the end of its first step.",
                                           {0.01, 0.1, 0.5, 1, 5, 10, 60, 600})),
      job_seconds(metrics.histogram("tessera_job_seconds", "From a job's acceptance to its end.",
                                    {0.1, 0.5, 1, 5, 10, 60, 600, 3600}, {"api"})),
      steps(metrics.counter("tessera_steps_total", "Denoising steps.")),
      step_seconds(metrics.histogram("tessera_step_seconds", "A denoising step, by the pictures of its run.",
                                     {0.001, 0.01, 0.1, 0.5, 1, 5, 10, 60}, {"batch"})),
      batch_size(metrics.histogram("tessera_batch_size", "Jobs that share a run.", {1, 2, 4, 8, 16})),
      previews(metrics.counter("tessera_previews_total", "Previews.")),
      worlds_ready(metrics.gauge("tessera_worlds_ready", "Worlds that take runs.")),
      worlds_lost(metrics.counter("tessera_worlds_lost_total", "Worlds that were lost.")),
      saves(metrics.counter("tessera_saves_total", "Runs that were saved between two steps.")),
      attached(
          metrics.counter("tessera_attached_total", "Requests that were sent again, and got their job.")) {}

Service::Status Service::status() const {
  Status status;
  for (const auto& [id, world] : worlds_) {
    WorldStatus& each = status.worlds.emplace_back();
    each = {.id = id,
            .is_ready = world.is_ready,
            .is_finishing = !world.leaving.empty() || (world.is_loaded && !world.is_ready),
            .restarts = world.restarts,
            .ranks = world.ranks,
            .weights_bytes = world.weights_bytes};
    for (const auto& [run_id, run] : runs_) each.runs += run.world == id ? 1 : 0;
    if (const auto loss = losses_.find(id); loss != losses_.end()) each.last_loss = loss->second.why;
  }
  for (const auto& [id, loss] : losses_) {
    if (!worlds_.contains(id))
      status.worlds.push_back({.id = id, .restarts = loss.restarts, .last_loss = loss.why});
  }
  status.restarts = options_.restarts;
  status.queued = scheduler_.queued();
  status.running = std::ssize(jobs_) - status.queued;
  status.bytes = scheduler_.bytes();
  status.is_draining = is_draining_;
  return status;
}

bool Service::Status::is_ready() const {
  return !is_draining && std::ranges::any_of(worlds, [](const WorldStatus& each) { return each.is_ready; });
}

void Service::measure() {
  const Status now = status();
  metrics_->jobs_queued.set(static_cast<double>(now.queued));
  metrics_->jobs_running.set(static_cast<double>(now.running));
  metrics_->worlds_ready.set(static_cast<double>(
      std::ranges::count_if(now.worlds, [](const WorldStatus& each) { return each.is_ready; })));
}

}  // namespace tessera::serve
