// The schedule of PipeFusion (arXiv:2405.14430): the blocks of a model are dealt to stages, and the patches
// of an image flow through the stages one after another. The first patch of a step does not wait for the last
// patch of the step before. This file knows only tensors, not what they stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"

namespace tessera::parallel {

struct PipelineSchedule {
  int64_t steps = 1;
  int64_t patches = 1;
  int64_t warmup_steps = 0;  // the first steps, which process all patches at once
  // Receives are posted after the work that they depend on has been queued, not before. A device needs this:
  // a posted receive occupies it until the message comes, and what the work allocates meanwhile may wait for
  // it.
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

  // Computes the stage's output for the next stage from the output of the stage before (empty on the first).
  // On the last stage, the output goes to update().
  virtual Tensors compute(int64_t step, Range patches, Tensors hidden) = 0;
  // Last stage: computes the new latents of the patches from the output of compute().
  virtual at::Tensor update(int64_t step, Range patches, const Tensors& output) = 0;
  // First stage: these latents have arrived; compute() may use them from now on.
  virtual void updated(int64_t step, Range patches, const at::Tensor& latents) = 0;
  // First stage: whether all latents of the step must arrive before ended() is called, as for the last step.
  // The later stages idle meanwhile.
  virtual bool wants_latents(int64_t /*step*/) const { return false; }

  // Uninitialised tensors with the shapes of: the output of the stage before, to receive into; this stage's
  // output to the next one; latents.
  virtual Tensors empty_hidden(Range patches) const = 0;
  virtual Tensors empty_output(Range patches) const = 0;
  virtual at::Tensor empty_latents(Range patches) const = 0;

  // The beginning and the end of a step on this rank. When began() returns false, which it must do on all
  // ranks at the same step, the run ends before that step.
  virtual bool began(int64_t step) = 0;
  virtual void ended(int64_t step) = 0;
};

// Runs all steps; returns false when began() ended the run early. All ranks of `group`, in the order of the
// stages, must call this with the same schedule. No rank waits for a send, and receives are posted before the
// work that hides them. On return, also after an early end, all messages have been received, unless a stage
// throws.
bool run_pipeline(const PipelineSchedule& schedule, PipelineStage& stage, const comm::Group& group);

}  // namespace tessera::parallel
