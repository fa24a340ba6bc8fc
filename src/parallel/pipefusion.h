// The schedule of PipeFusion (arXiv:2405.14430): the blocks of a model are dealt to stages, the picture is
// cut into patches that flow through them one behind the other, and a step's last patch does not wait for the
// next step's first. It knows tensors alone, not what they stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"

namespace tessera::parallel {

struct PipelineSchedule {
  int64_t steps = 1;
  int64_t patches = 1;
  int64_t warmup_steps = 0;  // of the steps, the first ones: they take all patches at once

  // Patches that go together in `step`: all of them, or one.
  int64_t run_length(int64_t step) const { return step < warmup_steps ? patches : 1; }
};

// What flows from stage to stage: as many tensors, of such shapes, as the stage says.
using Tensors = std::vector<at::Tensor>;

// What a rank does at its place in the pipeline. A group of one is first and last.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;

  // From what the stage before gave (nothing on the first) to what the next one gets, or on the last stage to
  // what update() takes.
  virtual Tensors compute(int64_t step, Range patches, Tensors hidden) = 0;
  // Last stage: from what compute() gave to the new latents of the patches.
  virtual at::Tensor update(int64_t step, Range patches, const Tensors& output) = 0;
  // First stage: these latents have come; compute() may use them from now on.
  virtual void updated(int64_t step, Range patches, const at::Tensor& latents) = 0;
  // First stage: whether all latents of the step are to be here before it has ended(), as those of the last
  // step are. The stages behind then run empty.
  virtual bool wants_latents(int64_t /*step*/) const { return false; }

  // Uninitialised tensors: what the stage before gives, to receive into; what compute() gives to the next
  // stage; latents.
  virtual Tensors empty_hidden(Range patches) const = 0;
  virtual Tensors empty_output(Range patches) const = 0;
  virtual at::Tensor empty_latents(Range patches) const = 0;

  // A step, on this rank. When began() says no, which it must on all ranks at the same step, the run ends
  // before that step.
  virtual bool began(int64_t step) = 0;
  virtual void ended(int64_t step) = 0;
};

// Runs all steps; false when began() ended the run earlier. All ranks of `group`, which stand in the order of
// the stages, must call this with the same schedule. No rank waits for a send; receives are posted before the
// work that they are hidden behind. On return all that was sent has been received, also when the run ended
// early (not when a stage throws).
bool run_pipeline(const PipelineSchedule& schedule, PipelineStage& stage, const comm::Group& group);

}  // namespace tessera::parallel
