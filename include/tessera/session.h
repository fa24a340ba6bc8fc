// A session advances several runs of an engine together, a denoising step of each at a time.
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

// Runs begin and end between steps, each by itself; each is a batch of requests. What a run gives does not
// depend on the others: the pictures of a request are bit for bit those of Engine::generate() with it alone.
//
// One thread uses a session, and all ranks make the same calls with the same arguments in the same order.
class TESSERA_API Session {
 public:
  using Id = int64_t;  // of a run; they are not used twice

  // `engine` must outlive it, and must not generate anything else meanwhile.
  explicit Session(Engine& engine);
  ~Session();  // drops the runs that are left
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Begins a run. Throws Error(kUsage) for requests that differ from those under way in more than
  // Engine::generate() allows; what else is wrong with them ends the run.
  Id begin(std::span<const Request> requests, const Observer& observer = {});
  Id begin(const Request& request, const Observer& observer = {});
  // Takes up a run again that was saved, by this engine or another one of the same model.
  Id resume(const SavedRun& saved, const Observer& observer = {});

  // Advances every run by a step, in the order in which they began; the first time also by what comes before
  // the steps, and after the last one by what follows them. Returns whether any is left. A run that fails or
  // is cancelled ends alone, unless it fails amid messages between ranks: then all end.
  bool advance();
  bool is_running(Id id) const;

  // Returns the results of a run that has ended, as Engine::generate() does, or throws what ended it. Once.
  std::vector<Result> take(Id id);
  // Ends a run between two steps without a result.
  void drop(Id id);
  // Saves a run between two steps. Throws Error(kUsage) for one that cannot be taken up again with the same
  // result: one whose ranks work with activations of earlier steps, and videos that begin from frames.
  SavedRun save(Id id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
