// One run of an engine: what happens to a batch of requests, from prompts to images.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/component_cache.h"
#include "engine/observer.h"
#include "engine/phases.h"
#include "engine/request.h"
#include "engine/result.h"
#include "engine/run_context.h"
#include "engine/saved_run.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// A run that advances, on this rank. Each function throws SettledEnd (engine/stages.h), or another exception
// if this rank fails while messages may be under way. All ranks must make the same calls.
class Run {
 public:
  // The arguments must outlive the run. `saved`, if not null, is where the run stands; the one on rank 0
  // counts.
  Run(std::span<const Settings> requests, const Model& model, ComponentCache& components,
      const parallel::Ranks& ranks, const Observer& observer, const SavedRun* saved = nullptr)
      : context_(requests, model, components, ranks, observer), saved_(saved) {}

  // Does what comes next: everything up to a denoising step, or that step; after the last step of a turn,
  // the decoding and what comes before the first step of the next turn.
  void advance();
  bool is_done() const { return stands_ == Stands::kAtEnd; }
  // Returns one result per request, without the total time. Call this once, after the last step.
  std::vector<Result> results() { return finish(context_); }
  // Session::save(), between two steps. require_savable() throws Error(kUsage), alike on all ranks.
  void require_savable() const;
  SavedRun save();
  // Session::watch(), between two steps.
  void watch(int64_t preview_every) {
    context_.observer().preview_every = preview_every;
    if (denoising_) denoising_->watch(preview_every);
  }
  // Ends the run between two steps, so that no message is under way.
  void drop() {
    if (denoising_) denoising_->drop();
  }

 private:
  enum class Stands { kAtStart, kInSteps, kAtEnd };

  void begin_turn(std::optional<DenoiseState> state);
  void end_turn();

  RunContext context_;
  const SavedRun* saved_;  // until the run has been resumed
  Stands stands_ = Stands::kAtStart;
  std::unique_ptr<DenoisePhase> denoising_;
};

}  // namespace tessera::engine
