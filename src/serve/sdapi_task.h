// A txt2img request of AUTOMATIC1111's API in progress: the jobs of its pictures, and the waiting client.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/awaited_job.h"
#include "serve/sdapi_request.h"

namespace tessera::serve {

class PictureTask : public std::enable_shared_from_this<PictureTask> {
 public:
  PictureTask(JobService& service, std::shared_ptr<Exchange> exchange, PictureCall call, ModelTraits model);

  void begin();
  // Ends the unfinished pictures: the client gets the finished ones.
  void interrupt();
  // Ends the current picture.
  void skip();

  const std::string& owner() const { return owner_; }
  const std::string& name() const { return call_.task; }
  bool is_under_way() const { return exchange_ != nullptr; }
  bool is_running() const;  // whether one of its jobs has begun
  // In AUTOMATIC1111's form: {progress, eta_relative, state, textinfo, current_task}.
  OrderedJson progress() const;
  // The newest preview of the current picture, a JPEG; nullptr if there is none.
  std::shared_ptr<const std::string> preview() const;

 private:
  struct Picture {
    std::shared_ptr<AwaitedJob> job = {};
    bool has_ended = false;  // or was skipped
  };

  void leave();
  void abandon();
  void refuse(const JobRefusal& refusal);
  void end(size_t index);
  void answer();
  void finish(HttpResponse response);
  const Picture* current() const;

  JobService& service_;
  std::shared_ptr<Exchange> exchange_;  // until the client has its answer
  const PictureCall call_;
  const ModelTraits model_;
  const std::string owner_;
  std::vector<Picture> pictures_;
  bool is_interrupted_ = false, is_skipped_ = false;
};

// The tasks of a server. Ended tasks are forgotten, except for the names that clients gave to some of them.
class PictureTasks {
 public:
  void add(const std::shared_ptr<PictureTask>& task);
  // The tasks in progress, in order of arrival. `name` selects those of that name; empty: all.
  std::vector<std::shared_ptr<PictureTask>> of(const std::string& owner, const std::string& name = {});
  // The running one, else the first; nullptr if there is none.
  std::shared_ptr<PictureTask> current(const std::string& owner, const std::string& name = {});
  bool has_ended(const std::string& owner, const std::string& name);

 private:
  void sweep();

  struct Named {
    std::weak_ptr<PictureTask> task;
    std::string owner, name;
  };
  std::vector<Named> tasks_;
  std::deque<std::pair<std::string, std::string>> ended_;  // owner and name
};

}  // namespace tessera::serve
