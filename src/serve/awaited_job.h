// A job for whose results a client waits on its connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/job_service.h"

namespace tessera::serve {

// It follows the job until it has ended, keeping its results. After refused() or ended(), and after leave(),
// no call comes any more, and what the calls hold is let go.
class AwaitedJob : public std::enable_shared_from_this<AwaitedJob> {
 public:
  struct Calls {
    std::function<void(const JobRefusal&)> refused;
    std::function<void()> ended;
    // May be empty. The first is asked once, with the job as it was accepted: JobService::follow().
    std::function<int64_t(const JobView&)> preview_every;
    std::function<void(const JobUpdate&)> previewed;
  };

  // `service` must outlive this.
  AwaitedJob(JobService& service, Calls calls)
      : service_(service), calls_(std::make_shared<const Calls>(std::move(calls))) {}

  // Once; calls may come before it returns.
  void submit(JobRequest request);

  // As it stands; it has no id before it is accepted.
  const JobView& view() const { return view_; }
  bool has_ended() const { return serve::has_ended(view_.state); }
  // The file of a result; nullptr if it is not there, or not there any more.
  std::shared_ptr<const std::string> result(size_t index) const {
    return index < results_.size() ? results_[index] : nullptr;
  }
  void cancel();
  // The client has gone: the job ends soon if nobody else follows it.
  void leave();

 private:
  void follow();
  void update(const JobUpdate& update);
  void add_result(size_t index, std::shared_ptr<const std::string> bytes);
  void end();

  JobService& service_;
  std::shared_ptr<const Calls> calls_;  // a call may end what holds it
  JobView view_;
  std::string owner_;
  std::vector<std::shared_ptr<const std::string>> results_;
  std::shared_ptr<Follower> follower_;
  bool is_over_ = false;
};

}  // namespace tessera::serve
