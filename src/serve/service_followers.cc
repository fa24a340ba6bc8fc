// Followers of jobs, and those that have stopped following.
#include <algorithm>

#include "serve/service_parts.h"

namespace tessera::serve {
namespace {

// How long a job continues after its client has gone: long enough for a client that lost its connection to
// send the request again.
constexpr Seconds kGrace{5};
// How long previews are made for somebody who has asked for one.
constexpr Seconds kPreviewInterest{10};
constexpr size_t kMostLooks = 2000, kMostTold = 50;

}  // namespace

std::shared_ptr<Follower> Service::follow(const std::string& owner, const std::string& id,
                                          int64_t preview_every, Told told) {
  const JobPtr job = live(owner, id);
  if (!job) return nullptr;
  auto following = std::make_shared<Following>(*this, job, preview_every, std::move(told));
  const std::shared_ptr<const Told> call = following->told;
  job->view.outlook = scheduler_.outlook(id, now());
  job->number =
      std::max(job->number + 1, static_cast<uint64_t>(hooks_.wall_clock().time_since_epoch().count()));
  (*call)({.kind = JobUpdate::Kind::kState, .number = job->number, .job = job->view});
  const auto files = job->files;
  for (const auto& [index, file] : files)
    (*call)({.kind = JobUpdate::Kind::kResult,
             .number = ++job->number,
             .job = job->view,
             .index = index,
             .bytes = file.bytes,
             .content_type = file.content_type});
  if (job->run) watch_run(*job->run);
  return following;
}

void Service::unfollow(const JobPtr& job) {
  if (job->has_ended()) return;
  if (job->followers.empty() && job->view.request.is_awaited) job->orphaned = now();
  if (job->run) watch_run(*job->run);
}

// A call may end the job and its followers; they are then told the newer state, and the rest is left out.
void Service::tell(const JobPtr& job, JobUpdate::Kind kind, int64_t index,
                   std::shared_ptr<const std::string> bytes, const std::string& content_type) {
  const uint64_t number =
      std::max(job->number + 1, static_cast<uint64_t>(hooks_.wall_clock().time_since_epoch().count()));
  job->number = number;
  std::vector<std::weak_ptr<Following>> followers;
  for (Following* each : job->followers) followers.push_back(each->weak_from_this());
  for (const std::weak_ptr<Following>& each : followers) {
    std::shared_ptr<const Told> call;
    if (const auto following = each.lock();
        following && (kind != JobUpdate::Kind::kPreview || following->preview_every > 0))
      call = following->told;
    if (!call) continue;
    (*call)({.kind = kind,
             .number = number,
             .job = job->view,
             .index = index,
             .bytes = bytes,
             .content_type = content_type});
    if (job->number != number && job->has_ended()) return;
  }
}

std::shared_ptr<const std::string> Service::preview(const std::string& owner, const std::string& id) {
  const JobPtr job = live(owner, id);
  if (!job) return nullptr;
  job->preview_wanted = now() + kPreviewInterest;
  if (job->run) watch_run(*job->run);
  return job->preview;
}

// How often previews of a run are made: as often as its most demanding follower wants. Somebody who asks now
// and then gets about twenty in a run.
int64_t Service::watched_every(const Run& run) const {
  int64_t every = 0;
  const auto want = [&](int64_t steps) {
    if (steps > 0) every = every == 0 ? steps : std::min(every, steps);
  };
  for (const Slot& slot : run.slots) {
    const JobPtr job = live(slot.id);
    if (!job) continue;
    for (const Following* each : job->followers) want(each->preview_every);
    if (job->preview_wanted > now()) want(std::max<int64_t>(job->view.steps / 20, 1));
  }
  return every;
}

void Service::watch_run(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  const int64_t every = watched_every(run);
  if (every == run.preview_every) return;
  run.preview_every = every;
  WorldOrder order = plain_order(WorldOrder::Kind::kWatch, id);
  order.preview_every = every;
  if (const auto world = worlds_.find(run.world); world != worlds_.end()) send(world->second, order);
}

// Sends followers of queued jobs their new place if it has changed: a few followers at each call, so that
// thousands of them delay nobody, and the next ones at the following call.
void Service::tell_places() {
  std::vector<JobPtr> moved;
  size_t looks = 0, told = 0;
  auto at = jobs_.upper_bound(last_place_);
  for (; at != jobs_.end() && looks < kMostLooks && told < kMostTold; ++at, ++looks) {
    const JobPtr& job = at->second;
    last_place_ = at->first;
    if (job->view.state != JobState::kQueued || job->followers.empty()) continue;
    const std::optional<Outlook> outlook = scheduler_.outlook(at->first, now());
    const bool is_new =
        outlook && (!job->view.outlook || job->view.outlook->jobs_ahead != outlook->jobs_ahead);
    job->view.outlook = outlook;
    if (!is_new) continue;
    moved.push_back(job);
    told += job->followers.size();
  }
  if (at == jobs_.end()) last_place_.clear();
  for (const JobPtr& job : moved) {
    if (job->view.state == JobState::kQueued) tell(job, JobUpdate::Kind::kState);
  }
}

void Service::end_orphans() {
  std::vector<JobPtr> orphans;
  for (const auto& [id, job] : jobs_) {
    if (job->orphaned && now() - *job->orphaned >= kGrace) orphans.push_back(job);
  }
  for (const JobPtr& job : orphans)
    cancel_job(job, {.code = "cancelled", .message = "the client has gone", .status = 499});
}

}  // namespace tessera::serve
