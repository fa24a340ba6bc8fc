// A job for whose results a client waits on its connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/job_service.h"

namespace tessera::serve {

// Follows a job until it has ended, and keeps its results. After refused(), ended() or leave(), no further
// call is made, and the calls' captures are released.
class AwaitedJob : public std::enable_shared_from_this<AwaitedJob> {
 public:
  struct Calls {
    std::function<void(const JobRefusal&)> refused;
    std::function<void()> ended;
    // May be empty. Called once, with the job as it was accepted; its result is for JobService::follow().
    std::function<int64_t(const JobView&)> preview_every;
    std::function<void(const JobUpdate&)> previewed;
  };

  // `service` must outlive this.
  AwaitedJob(JobService& service, Calls calls)
      : service_(service), calls_(std::make_shared<const Calls>(std::move(calls))) {}

  // Call it once; callbacks may come before it returns.
  void submit(JobRequest request);

  // The current state; it has no id before the job is accepted.
  const JobView& view() const { return view_; }
  bool has_ended() const { return serve::has_ended(view_.state); }
  // The file of a result; nullptr if it is not there yet, or has been removed.
  std::shared_ptr<const std::string> result(size_t index) const {
    return index < results_.size() ? results_[index] : nullptr;
  }
  void cancel();
  // The client has gone: the job ends soon if it has no other follower.
  void leave();

 private:
  void follow();
  void update(const JobUpdate& update);
  void add_result(size_t index, std::shared_ptr<const std::string> bytes);
  void end();

  JobService& service_;
  std::shared_ptr<const Calls> calls_;  // a call may destroy its holder
  JobView view_;
  std::string owner_;
  std::vector<std::shared_ptr<const std::string>> results_;
  std::shared_ptr<Follower> follower_;
  bool is_over_ = false;
};

}  // namespace tessera::serve
