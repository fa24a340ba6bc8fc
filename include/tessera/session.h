// A session advances several runs of an engine together, each by one denoising step at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

// Where a run stands between two steps. It outlives session and engine.
class TESSERA_API SavedRun {
 public:
  SavedRun(SavedRun&&) noexcept;
  SavedRun& operator=(SavedRun&&) noexcept;
  ~SavedRun();

 private:
  friend class Session;
  struct State;
  explicit SavedRun(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Runs begin and end independently, between steps; each is a batch of requests. The result of a run does not
// depend on the others: the pictures of a request are bit for bit those of Engine::generate() with it alone.
//
// A session is used by one thread, and all ranks make the same calls with the same arguments in the same
// order.
class TESSERA_API Session {
 public:
  using Id = int64_t;  // of a run; never used twice

  // `engine` must outlive the session and must not generate anything else during its life.
  explicit Session(Engine& engine);
  ~Session();  // drops the remaining runs
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Begins a run. Throws Error(kUsage) for requests that differ from the running ones in more than
  // Engine::generate() allows; any other fault in them ends the run.
  Id begin(std::span<const Request> requests, const Observer& observer = {});
  Id begin(const Request& request, const Observer& observer = {});
  // Resumes a run that was saved by this engine or by another one with the same model.
  Id resume(const SavedRun& saved, const Observer& observer = {});

  // Advances every run by a step, in the order in which they began. The first call also does the work that
  // precedes a run's steps, the last one the work that follows them. Returns whether any run is left. A run
  // that fails or is cancelled ends alone, unless it fails while ranks exchange messages: then all runs end.
  bool advance();
  bool is_running(Id id) const;

  // Returns the results of a run that has ended, as Engine::generate() does, or throws the exception that
  // ended it. Call it once for each run.
  std::vector<Result> take(Id id);
  // Ends a run between two steps without a result.
  void drop(Id id);
  // Saves a run between two steps. Throws Error(kUsage) for runs that could not be resumed with the same
  // result: those whose ranks work with activations of earlier steps, and videos that begin with given
  // frames.
  SavedRun save(Id id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
