// The schedule of PipeFusion (arXiv:2405.14430): the blocks of a model are dealt to stages, and the patches
// of an image flow through the stages one after another. The first patch of a step does not wait for the last
// patch of the previous step. This file knows only tensors, not their meaning.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "comm/collectives.h"

namespace tessera::parallel {

struct PipelineSchedule {
  int64_t steps = 1;
  int64_t first_step = 0;  // the step with which the pipeline begins
  int64_t patches = 1;
  int64_t warmup_steps = 0;  // the first steps, which process all patches at once
  // Receives are posted after the work that they depend on has been queued, not before. A device needs this:
  // a posted receive occupies it until the message comes, and allocations made by the work may wait for it.
  bool receives_late = false;

  // The number of patches that are processed together in `step`: all of them, or one.
  int64_t run_length(int64_t step) const { return step < warmup_steps ? patches : 1; }
};

// What flows from stage to stage; the stage decides the number and shapes of the tensors.
using Tensors = std::vector<at::Tensor>;

// The work of a rank at its place in the pipeline. In a group of one, the rank is both the first and the last
// stage.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;

  // Computes the output for the next stage from that of the previous stage (empty on the first). On the last
  // stage, the output goes to update().
  virtual Tensors compute(int64_t step, Range patches, Tensors hidden) = 0;
  // Last stage: computes the new latents of the patches from the output of compute().
  virtual at::Tensor update(int64_t step, Range patches, const Tensors& output) = 0;
  // First stage: these latents have arrived; compute() may use them from now on.
  virtual void updated(int64_t step, Range patches, const at::Tensor& latents) = 0;
  // First stage: whether all latents of the step must arrive before ended() is called, as after the last
  // step. The later stages are idle meanwhile.
  virtual bool wants_latents(int64_t /*step*/) const { return false; }

  // Uninitialised tensors with the shapes of: the previous stage's output, to receive into; this stage's
  // output for the next one; latents.
  virtual Tensors empty_hidden(Range patches) const = 0;
  virtual Tensors empty_output(Range patches) const = 0;
  virtual at::Tensor empty_latents(Range patches) const = 0;

  // The beginning and the end of a step on this rank. If began() returns false, which it must do on all ranks
  // at the same step, the run ends before that step.
  virtual bool began(int64_t step) = 0;
  virtual void ended(int64_t step) = 0;
};

// A rank's part of the pipeline, which advances step by step. All ranks of `group`, in the order of the
// stages, must make the same calls with the same schedule. Ranks never wait for a send, and receives are
// posted before the work that hides them, even for the next step.
class Pipeline {
 public:
  // The arguments must outlive it.
  Pipeline(const PipelineSchedule& schedule, PipelineStage& stage, const comm::Group& group)
      : schedule_(schedule), stage_(stage), group_(group), next_step_(schedule.first_step) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  int64_t next_step() const { return next_step_; }
  bool is_done() const { return next_step_ == schedule_.steps; }

  // Runs the next step. Returns false if began() has ended the run before it. Then, and after the last step,
  // all messages have been received, unless a stage throws.
  bool advance();
  // First stage: waits for the latents of the last step that was run; other stages do nothing.
  void catch_up();
  // Ends the run before its last step, between two steps. Afterwards all messages have been received.
  void drop();

 private:
  // Consecutive patches of a step. All ranks process these runs in the same order.
  struct PatchRun {
    int64_t step;
    Range patches;
  };
  // The tensors of a run that are being sent or received. Sent tensors must not change until they have
  // arrived.
  struct Moving {
    void wait() {
      for (comm::Pending& one : pending) one.wait();
    }
    PatchRun run;
    Tensors tensors;
    std::vector<comm::Pending> pending;
  };

  PatchRun first_run(int64_t step) const { return {step, {0, schedule_.run_length(step)}}; }
  bool is_first() const { return group_.rank == 0; }
  bool is_last() const { return group_.rank + 1 == group_.size; }
  bool is_alone() const { return group_.size == 1; }
  void work(const PatchRun& run);
  void receive_next(const PatchRun& run);
  static Moving arriving(const PatchRun& run, Tensors tensors, int64_t from, const comm::Group& group);
  void receive_hidden(const PatchRun& run);
  void receive_latents(const PatchRun& run);
  void wait_for_latents(int64_t step, int64_t end);
  void send_on(const PatchRun& run, Tensors tensors, int64_t to);
  void drain(int64_t step);

  PipelineSchedule schedule_;
  PipelineStage& stage_;
  const comm::Group& group_;
  int64_t next_step_;
  Moving hidden_;
  std::deque<Moving> latents_, sent_;
};

}  // namespace tessera::parallel
