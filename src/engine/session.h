// A session advances several runs of an engine together, a denoising step of each at a time.
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

// Runs begin and end between steps, each by itself; each is a batch of requests, which share every product.
// What a run gives does not depend on the others: their steps alternate with its own, and their messages have
// lanes of their own. So the pictures of a request are bit for bit those of Engine::run() with it alone.
//
// Each rank has one, which one thread uses. All ranks must make the same calls with the same arguments in the
// same order, but for observers, of which that of rank 0 is asked whether a run is cancelled.
class Session {
 public:
  using Id = int64_t;  // of a run; they are not used twice

  // `engine` must outlive it. No other run of the engine may come before its end.
  explicit Session(Engine& engine, parallel::Layout layout = {});
  // Drops the runs that are left.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Begins a run of the requests as Engine::run() does. `layout` of the session is resolved for a workload
  // like theirs. Throws Error(kUsage) for requests that are not like those under way (batch_key()); what else
  // is wrong with them ends the run.
  Id begin(std::span<const Settings> requests, const Observer& observer = {});
  // Takes up a run again that was saved, in this process or another, by this engine or another one of the
  // same model. `saved` of rank 0 counts; other ranks need its requests alone.
  Id resume(const SavedRun& saved, const Observer& observer = {});

  // Advances every run by a step, in the order in which they began; the first time also by what comes before
  // the steps, and after the last one by what follows them. Returns whether any is left. A run that fails, or
  // whose observer cancels it, ends alone; if it fails amid messages, all end with it (Engine::run() says
  // when the engine can go on).
  bool advance();

  bool is_running(Id id) const;
  // Returns what Engine::run() does for a run that has ended, or throws what ended it. Call it once.
  std::vector<Result> take(Id id);

  // Changes Observer::preview_every of a run, from the next step on; does nothing to one that has ended. Here
  // all ranks give the number.
  void watch(Id id, int64_t preview_every);

  // Ends a run between two steps without a result.
  void drop(Id id);

  // Returns where a run stands between two steps, on rank 0; on other ranks the requests alone. Throws
  // Error(kUsage) for a run that cannot be taken up again with the same result: one whose ranks work with
  // activations of earlier steps, and videos that begin from frames.
  SavedRun save(Id id);

 private:
  struct Member;
  using Members = std::vector<std::unique_ptr<Member>>;
  using End = std::variant<std::vector<Result>, std::exception_ptr>;

  Id add(SavedRun start, bool is_resumed, const Observer& observer);
  void advance(std::unique_ptr<Member> member, Members& left);
  // Runs `work` with the members. If it throws, all of them end with that.
  template <typename Work>
  void amid_messages(const Work& work);

  Engine& engine_;
  parallel::Layout layout_;
  Id next_ = 0;
  Members members_;
  std::map<Id, End> ended_;
};

}  // namespace tessera::engine
