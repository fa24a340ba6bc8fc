// Declarations that only the sources of Service share.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/service.h"

namespace tessera::serve {

struct Service::LiveJob {
  JobView view;
  std::string batch_key = {};  // Admitted
  double work = 1;
  bool may_be_saved = true;
  uint64_t number = 0;  // of the last update
  std::list<Following*> followers = {};
  std::optional<Seconds> orphaned = {};  // since when an awaited job has had no follower
  bool is_told = false;                  // whether its client knows about it
  // A file for each finished picture.
  std::map<int64_t, JournalThread::File> files = {};
  double writing = 0;       // how long making the files took, in seconds
  bool is_storing = false;  // whether the journal is writing the results
  std::shared_ptr<const std::string> preview = {};
  Seconds preview_wanted{-kNever};  // until when somebody who does not follow the job wants previews
  std::optional<RunId> run = {}, saved = {};
  std::optional<WallTime> deadline = {};
  Seconds created{0};
  std::optional<JobError> why = {};  // the reason for its end, once it is cancelled

  const std::string& id() const { return view.id; }
  bool has_ended() const { return serve::has_ended(view.state); }
};

// An order with nothing attached.
inline WorldOrder plain_order(WorldOrder::Kind kind, RunId run = 0) {
  return {.kind = kind, .run = run, .requests = {}, .saved = {}};
}

// A run on a world.
struct Service::Run {
  WorldId world = 0;
  std::vector<Slot> slots = {};
  std::vector<std::string> requests = {};
  std::string batch_key = {};
  double work = 0;  // of a step
  int64_t pictures = 0;
  int64_t steps = 1;  // as counted by the scheduler
  int64_t done = 0;   // likewise
  bool is_shared = false;
  bool is_saveable = true;
  bool is_begun = false;  // by its world, which may have hung before
  Seconds began{0};
  // Of denoising, which has begun when the first number of steps arrives.
  std::optional<int64_t> counted = {};  // as counted by the world
  bool is_denoising = false;
  Seconds counted_at{0}, longest{0}, denoised{0};
  // Of saving.
  Seconds saved_at{0}, save_interval{0};
  std::optional<int64_t> saving_since = {};  // how many steps were done when saving was requested
  int64_t preview_every = 0;
};

struct Service::World {
  std::unique_ptr<WorldLink> link;
  bool is_loaded = false, is_ready = false, is_replaced = false;
  Seconds heard{0};  // when it sent the last event
  // Runs that it is to drop after the current step, and how long it may be silent until then.
  std::map<RunId, Seconds> leaving = {};
  int64_t restarts = 0, ranks = 0;
  uint64_t weights_bytes = 0;
};

struct Service::Families {
  explicit Families(Metrics& metrics);
  Metrics::Family &jobs, &jobs_queued, &jobs_running, &queue_seconds, &first_step_seconds, &job_seconds,
      &steps, &step_seconds, &batch_size, &previews, &worlds_ready, &worlds_lost, &saves, &attached;
};

// Calls a follower of a job.
class Service::Following final : public Follower, public std::enable_shared_from_this<Following> {
 public:
  Following(Service& service, JobPtr job, int64_t preview_every, Told told)
      : service_(service),
        is_service_alive_(service.is_alive_),
        job_(std::move(job)),
        preview_every(preview_every),
        told(std::make_shared<const Told>(std::move(told))) {
    place_ = job_->followers.insert(job_->followers.end(), this);
    job_->orphaned.reset();
  }
  ~Following() override {
    job_->followers.erase(place_);
    if (!is_service_alive_.expired()) service_.unfollow(job_);
  }
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;

 private:
  Service& service_;
  std::weak_ptr<bool> is_service_alive_;
  JobPtr job_;
  std::list<Following*>::iterator place_;

 public:
  const int64_t preview_every;
  const std::shared_ptr<const Told> told;
};

}  // namespace tessera::serve
