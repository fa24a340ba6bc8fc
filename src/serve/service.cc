// Jobs, from acceptance to their end.
#include "serve/service.h"

#include <algorithm>

#include "core/error.h"
#include "serve/service_parts.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostHashes = 4096;

JobRefusal refusal(std::string code, std::string message, int status, std::string parameter = {}) {
  return {.error = {.code = std::move(code), .message = std::move(message), .status = status},
          .parameter = std::move(parameter)};
}

JobRefusal refusal_of(const Refusal& why) {
  using Reason = Refusal::Reason;
  JobRefusal refused;
  switch (why.reason) {
    case Reason::kDraining:
      refused = refusal("draining", "the server is about to end", 503);
      break;
    case Reason::kTooLarge:
      refused = refusal("too_large", "the request is too large for the queue", 413);
      break;
    case Reason::kQueueFull:
    case Reason::kBytesFull:
      refused = refusal("queue_full", "the queue is full; try again later", 429);
      break;
    case Reason::kOwnerFull:
      refused = refusal("too_many_jobs", "too many of your jobs wait; try again later", 429);
      break;
  }
  if (why.retry_after) refused.retry_after = std::max(*why.retry_after, Seconds(1));
  return refused;
}

JobRefusal conflict() {
  return refusal("idempotency_conflict", "another request had this Idempotency-Key", 422);
}

JobRefusal no_storage() {
  JobRefusal refused = refusal("storage", "the server cannot write to its disk", 503);
  refused.retry_after = Seconds(10);
  return refused;
}

}  // namespace

Service::Service(ServiceOptions options, ServiceHooks hooks, Metrics& metrics)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      started_(hooks_.wall_clock()),
      metrics_(std::make_unique<Families>(metrics)),
      scheduler_(options_.scheduler),
      memory_(options_.base, options_.memory),
      last_tick_(hooks_.clock()),
      journal_(std::make_unique<JournalThread>(options_.journal, hooks_.post, hooks_.wall_clock)),
      encoder_(std::make_unique<Encoder>(options_.base, options_.journal.folder / "encoding", hooks_.post)) {
  std::map<std::filesystem::path, RunId> saved;
  for (const JournalJob& each : journal_->take_unfinished()) restore(each, saved);
  look_at_restored();
  remove_stray_uploads();
}

Service::~Service() = default;

Service::JobPtr Service::live(const std::string& id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

Service::JobPtr Service::live(const std::string& owner, const std::string& id) const {
  const JobPtr job = live(id);
  return job && job->view.request.owner == owner ? job : nullptr;
}

JobView Service::view_of_job(const LiveJob& job) const {
  JobView view = job.view;
  if (view.state == JobState::kQueued) view.outlook = scheduler_.outlook(view.id, now());
  return view;
}

// Accepting.

void Service::submit(JobRequest request, Submitted done) {
  if (attach(request, done)) return;
  if (is_draining_) return done(refusal_of({.reason = Refusal::Reason::kDraining}), false);
  if (!request.request.images.empty())
    return done(refusal("invalid_value", "image: files of the server are not read", 400, "image"), false);
  if (!request.request.video.reference_paths.empty())
    return done(refusal("invalid_value", "reference: files of the server are not read", 400, "reference"),
                false);
  if (!request.images.empty() || !request.references.empty())
    return keep_uploads(std::move(request), std::move(done));
  admit_and_submit(std::move(request), std::move(done));
}

// Whether the client has sent it before, or may not send it in this way.
bool Service::attach(const JobRequest& request, const Submitted& done) {
  if (request.idempotency_key) {
    const auto found = keys_.find({request.owner, *request.idempotency_key});
    const JobPtr job = found == keys_.end() ? nullptr : live(found->second);
    if (!job) return false;
    const bool is_same = job->view.request.body_hash == request.body_hash;
    metrics_->attached.add();
    if (is_same) {
      done(view_of_job(*job), true);
    } else {
      done(conflict(), false);
    }
    return true;
  }
  if (!request.is_resend) return false;
  const auto found = hashes_.find({request.owner, request.body_hash});
  if (found == hashes_.end()) return false;
  find(request.owner, found->second, [this, request, done](std::optional<JobView> view) {
    metrics_->attached.add();
    if (view) return done(std::move(*view), true);
    JobRequest again = request;
    again.is_resend = false;
    submit(std::move(again), done);
  });
  return true;
}

void Service::admit_and_submit(JobRequest request, Submitted done) {
  std::variant<Admitted, JobRefusal> admitted = admit(request, options_.base, options_.limits);
  if (auto* refused = std::get_if<JobRefusal>(&admitted)) {
    remove_uploads(request.request.images);
    remove_uploads(request.request.video.reference_paths);
    return done(std::move(*refused), false);
  }
  Admitted& taken = std::get<Admitted>(admitted);
  if (const auto lack = memory_.known(taken)) return submit_admitted(request, taken, *lack, std::move(done));
  encoder_->run([this, held = memory_.held_by_others(), request = std::move(request),
                 taken = std::move(taken), done = std::move(done)]() mutable {
    const MemoryGate::Lack lack = memory_.look(taken, held);
    hooks_.post([this, held, lack, request = std::move(request), taken = std::move(taken),
                 done = std::move(done)]() mutable {
      memory_.keep(taken, lack, held);
      submit_admitted(request, taken, lack, std::move(done));
    });
  });
}

void Service::submit_admitted(const JobRequest& request, const Admitted& admitted,
                              const MemoryGate::Lack& lack, Submitted done) {
  if (!lack.empty()) {
    remove_uploads(request.request.images);
    remove_uploads(request.request.video.reference_paths);
    return done(refusal("out_of_memory", lack, 400), false);
  }
  const JobPtr job = create(request, admitted);
  job->view.accepted = hooks_.wall_clock();
  // The order of ids is that in which jobs were accepted, even within one millisecond.
  last_id_time_ = std::max(job->view.accepted, last_id_time_ + std::chrono::milliseconds(1));
  job->view.id = new_job_id(last_id_time_);
  if (request.timeout)
    job->deadline =
        job->view.accepted + std::chrono::duration_cast<std::chrono::milliseconds>(*request.timeout);
  begin_job(job, std::move(done));
}

Service::JobPtr Service::create(const JobRequest& request, const Admitted& admitted) {
  const JobPtr job = std::make_shared<LiveJob>();
  job->view = view_of(request, admitted);
  job->batch_key = admitted.batch_key;
  job->work = admitted.work;
  job->may_be_saved = admitted.may_be_saved;
  job->created = now();
  return job;
}

Job Service::scheduled(const LiveJob& job) const {
  Job scheduled{.id = job.id(), .owner = job.view.request.owner, .batch_key = job.batch_key};
  scheduled.estimate = estimates_.run(job.batch_key, job.work, job.view.steps);
  scheduled.steps = job.view.steps;
  scheduled.pictures = job.view.pictures;
  // The approximate size of a job besides its texts.
  scheduled.bytes = 4096;
  for (const std::string& text : job.view.request.request.prompts) scheduled.bytes += 2 * text.size();
  if (job.deadline)
    scheduled.deadline = now() + std::chrono::duration_cast<Seconds>(*job.deadline - hooks_.wall_clock());
  scheduled.may_be_saved = job.may_be_saved;
  return scheduled;
}

void Service::remember(const LiveJob& job) {
  const JobRequest& request = job.view.request;
  if (request.idempotency_key) keys_[{request.owner, *request.idempotency_key}] = job.id();
  if (request.body_hash.empty()) return;
  hashes_[{request.owner, request.body_hash}] = job.id();
  hash_order_.push_back({{request.owner, request.body_hash}, job.id()});
  if (hash_order_.size() <= kMostHashes) return;
  const auto oldest = hashes_.find(hash_order_.front().first);
  if (oldest != hashes_.end() && oldest->second == hash_order_.front().second) hashes_.erase(oldest);
  hash_order_.pop_front();
}

// The job begins when its turn comes, even if it is not on disk yet; an error of the journal may then end it.
// Only its client has to wait.
void Service::begin_job(const JobPtr& job, Submitted done) {
  const JobRequest& request = job->view.request;
  if (const std::optional<Refusal> why = scheduler_.submit(scheduled(*job), now())) {
    remove_uploads(request.request.images);
    remove_uploads(request.request.video.reference_paths);
    return done(refusal_of(*why), false);
  }
  remember(*job);
  jobs_[job->id()] = job;
  const bool waits_for_disk = request.is_stored && (!request.is_awaited || request.idempotency_key);
  if (request.is_stored) {
    Submission submission{.id = job->id(),
                          .owner = request.owner,
                          .family = request.api,
                          .request = write_stored_job(job->view),
                          .accepted = job->view.accepted};
    submission.deadline = job->deadline;
    submission.idempotency_key = request.idempotency_key;
    submission.body_hash = request.body_hash;
    journal_->accept(std::move(submission), [this, job, done = waits_for_disk ? done : Submitted()](
                                                const auto& answer) { accepted(job, done, answer); });
  }
  decide_all();
  if (waits_for_disk) return;
  if (request.is_awaited) job->orphaned = now();
  done(view_of_job(*job), false);
}

// `done` is empty if the client already has its answer.
void Service::accepted(const JobPtr& job, const Submitted& done,
                       const std::variant<Acceptance, std::string>& answer) {
  const JobRequest& request = job->view.request;
  const auto* acceptance = std::get_if<Acceptance>(&answer);
  if (acceptance != nullptr && acceptance->kind == Acceptance::Kind::kAccepted) {
    if (!done) return;
    if (request.is_awaited && job->followers.empty()) job->orphaned = now();
    return done(view_of_job(*job), false);
  }
  job->view.request.is_stored = false;  // the journal does not have it
  if (!done) return;
  if (!job->has_ended())
    cancel_job(job, {.code = "cancelled", .message = "the job was not accepted", .status = 503});
  if (acceptance == nullptr) return done(no_storage(), false);
  if (acceptance->kind == Acceptance::Kind::kRefused) return done(conflict(), false);
  metrics_->attached.add();
  find(request.owner, acceptance->id, [done](std::optional<JobView> view) {
    if (view) return done(std::move(*view), true);
    done(no_storage(), false);
  });
}

// Asking.

void Service::find(const std::string& owner, const std::string& id, Found done) {
  if (const JobPtr job = live(id)) {
    const bool is_own = job->view.request.owner == owner;
    return done(is_own ? std::optional(view_of_job(*job)) : std::nullopt);
  }
  if (!is_job_id(id)) return done(std::nullopt);
  journal_->find(id, [owner, done](std::optional<JournalThread::Found> found) {
    if (!found || found->job.submission.owner != owner) return done(std::nullopt);
    done(serve::view_of(found->job, found->results));
  });
}

void Service::list(const std::string& owner, const JobFilter& filter,
                   std::function<void(std::vector<JobView>)> done) {
  std::vector<JobView> views;
  const auto add = [&](const LiveJob& job) {
    const std::string& id = job.id();
    const bool is_behind =
        filter.after.empty() || (filter.newest_first ? id < filter.after : id > filter.after);
    if (is_behind && job.view.request.owner == owner && filter.includes(job.view.state) &&
        (!filter.api || *filter.api == job.view.request.api) && std::ssize(views) < filter.limit)
      views.push_back(view_of_job(job));
  };
  if (filter.newest_first) {
    for (auto each = jobs_.rbegin(); each != jobs_.rend(); ++each) add(*each->second);
  } else {
    for (const auto& [id, job] : jobs_) add(*job);
  }
  const bool wants_ended = filter.states.empty() || std::ranges::any_of(filter.states, serve::has_ended);
  if (!wants_ended) return done(std::move(views));
  journal_->list(owner, filter, [views, filter, done](std::vector<JournalThread::Found> found) {
    std::map<std::string, JobView> all;
    for (const JobView& each : views) all[each.id] = each;
    for (const JournalThread::Found& each : found)
      all[each.job.submission.id] = serve::view_of(each.job, each.results);
    std::vector<JobView> sorted;
    for (auto& [id, view] : all) sorted.push_back(std::move(view));
    if (filter.newest_first) std::reverse(sorted.begin(), sorted.end());
    if (std::ssize(sorted) > filter.limit) sorted.resize(static_cast<size_t>(filter.limit));
    done(std::move(sorted));
  });
}

std::vector<JobView> Service::unfinished(const std::string& owner) {
  std::vector<JobView> views;
  for (const auto& [id, job] : jobs_) {
    if (job->view.request.owner == owner) views.push_back(view_of_job(*job));
  }
  return views;
}

// Ending.

void Service::cancel(const std::string& owner, const std::string& id, Found done) {
  const JobPtr job = live(owner, id);
  if (!job) return find(owner, id, std::move(done));
  cancel_job(job, {.code = "cancelled", .message = "the job was cancelled", .status = 409});
  done(view_of_job(*job));
}

// Returns whether it has ended. Results that are on their way to disk cannot be stopped.
bool Service::cancel_job(const JobPtr& job, const JobError& why) {
  if (job->is_storing) return false;
  job->why = why;
  switch (scheduler_.cancel(job->id())) {
    case Cancelled::kAtOnce:
      end(job, JobState::kCancelled, why);
      break;
    case Cancelled::kAtNextStep:  // the world takes up what follows before its next step
      decide(runs_.at(*job->run).world);
      break;
    case Cancelled::kHasNoEffect:
      break;
  }
  return job->has_ended();
}

void Service::remove(const std::string& owner, const std::string& id, std::function<void(bool)> done) {
  if (const JobPtr job = live(owner, id)) {
    cancel_job(job, {.code = "cancelled", .message = "the job was removed", .status = 409});
    if (job->view.request.is_stored) journal_->remove(id);
    return done(true);
  }
  find(owner, id, [this, id, done](const std::optional<JobView>& view) {
    if (view) journal_->remove(id);
    done(view.has_value());
  });
}

void Service::end(const Ended& ended) {
  const JobPtr job = live(ended.id);
  if (!job) return;
  switch (ended.state) {
    case JobState::kCancelled:
      return end(job, ended.state,
                 job->why.value_or(
                     JobError{.code = "cancelled", .message = "the job was cancelled", .status = 409}));
    case JobState::kExpired:
      return end(
          job, ended.state,
          JobError{.code = "expired", .message = "the job was not done by its deadline", .status = 504});
    default:
      return end(job, ended.state,
                 job->why.value_or(JobError{.code = "failed", .message = "the job has failed"}));
  }
}

// The scheduler no longer knows the job.
void Service::end(const JobPtr& job, JobState state, std::optional<JobError> error) {
  JobView& view = job->view;
  const std::string id = job->id();
  jobs_.erase(id);
  if (view.request.idempotency_key) keys_.erase({view.request.owner, *view.request.idempotency_key});
  release_saved(*job);
  view.state = state;
  view.outlook.reset();
  view.ended = std::max(hooks_.wall_clock(), view.started.value_or(view.accepted));
  view.expires = *view.ended + options_.journal.time_to_live;
  view.error = std::move(error);
  job->run.reset();
  if (view.request.is_stored && state != JobState::kSucceeded)
    journal_->record({.id = id,
                      .state = state,
                      .attempts = view.attempts,
                      .error = view.error ? write_job_error(*view.error) : "",
                      .started = view.started});
  metrics_->jobs.add({view.request.api, std::string(name_of(state))});
  metrics_->job_seconds.observe({view.request.api}, (now() - job->created).count());
  tell(job, JobUpdate::Kind::kState);  // before what no client waits for
  job->files.clear();
  encoder_->forget(id);
  remove_uploads(view.request.request.images);
  remove_uploads(view.request.request.video.reference_paths);
}

void Service::drain() {
  is_draining_ = true;
  scheduler_.drain();
  std::vector<JobPtr> lost;
  for (const auto& [id, job] : jobs_) {
    if (job->view.state == JobState::kQueued &&
        (job->view.request.is_awaited || !job->view.request.is_stored))
      lost.push_back(job);
  }
  for (const JobPtr& job : lost)
    cancel_job(job, {.code = "draining", .message = "the server is about to end", .status = 503});
}

bool Service::is_idle() const {
  return std::ranges::all_of(jobs_,
                             [](const auto& each) { return each.second->view.state == JobState::kQueued; });
}

}  // namespace tessera::serve
