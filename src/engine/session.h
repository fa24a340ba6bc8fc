// A session advances several runs of an engine together, each by one denoising step at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/saved_run.h"

namespace tessera::engine {

// Runs begin and end independently, between steps; each is a batch of requests, which share every product.
// The result of a run does not depend on the others: their steps alternate with its own, and their messages
// have lanes of their own. So the pictures of a request are bit for bit those of Engine::run() with it alone.
//
// Each rank has one session, used by one thread. All ranks must make the same calls with the same arguments
// in the same order, except for observers: only that of rank 0 is asked whether a run is cancelled.
class Session {
 public:
  using Id = int64_t;  // of a run; never used twice

  // `engine` must outlive the session, and can do no other run before the session ends.
  explicit Session(Engine& engine, parallel::Layout layout = {});
  // Drops the remaining runs.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Begins a run of the requests as Engine::run() does. `layout` of the session is resolved for a workload
  // like theirs. Throws Error(kUsage) for requests that are unlike the running ones (batch_key()); any other
  // fault in them ends the run.
  Id begin(std::span<const Settings> requests, const Observer& observer = {});
  // Resumes a run that was saved in this process or another, by this engine or another one with the same
  // model. `saved` of rank 0 counts; other ranks need only its requests.
  Id resume(const SavedRun& saved, const Observer& observer = {});

  // Advances every run by a step, in the order in which they began. The first call also does the work that
  // precedes a run's steps, the last one the work that follows them. Returns whether any run is left. A run
  // that fails, or whose observer cancels it, ends alone; if it fails while messages are in flight, all runs
  // end with it (Engine::run() explains when the engine can go on).
  bool advance();

  bool is_running(Id id) const;
  // Returns what Engine::run() returns for a run that has ended, or throws the exception that ended it. Call
  // it once.
  std::vector<Result> take(Id id);

  // Changes Observer::preview_every of a run from the next step on; has no effect on a run that has ended.
  // All ranks must pass the same number.
  void watch(Id id, int64_t preview_every);

  // Ends a run between two steps without a result.
  void drop(Id id);

  // Returns where a run stands between two steps on rank 0, and only the requests on other ranks. Throws
  // Error(kUsage) for runs that could not be resumed with the same result: those whose ranks work with
  // activations of earlier steps, and videos that begin with given frames.
  SavedRun save(Id id);

 private:
  struct Member;
  using Members = std::vector<std::unique_ptr<Member>>;
  using End = std::variant<std::vector<Result>, std::exception_ptr>;

  Id add(SavedRun start, bool is_resumed, const Observer& observer);
  void advance(std::unique_ptr<Member> member, Members& left);
  // Runs `work` with all runs. If it throws, all of them end with that exception.
  template <typename Work>
  void amid_messages(const Work& work);

  Engine& engine_;
  parallel::Layout layout_;
  Id next_ = 0;
  Members members_;
  std::map<Id, End> ended_;
};

}  // namespace tessera::engine
