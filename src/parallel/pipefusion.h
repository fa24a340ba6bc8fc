// The schedule of PipeFusion (arXiv:2405.14430): the blocks of a model are dealt to stages, the picture is
// cut into patches that flow through them one behind the other, and a step's last patch does not wait for the
// next step's first. It knows tensors and functions alone, not what they stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "comm/group.h"

namespace tessera::parallel {

struct PipelineSchedule {
  int64_t steps = 1;
  int64_t patches = 1;
  int64_t warmup_steps = 0;  // of the steps, the first ones: they take all patches at once

  // Patches that go together in `step`: all of them, or one.
  int64_t run_length(int64_t step) const { return step < warmup_steps ? patches : 1; }
};

// What a rank does at its place in the pipeline. A group of one is first and last.
struct PipelineStage {
  // First stage: the input of the first block.
  std::function<at::Tensor(int64_t step, Range patches)> input;
  // Every stage.
  std::function<at::Tensor(int64_t step, Range patches, const at::Tensor& x)> compute;
  // Last stage: from what compute() gave there to the new latents of the patches.
  std::function<at::Tensor(int64_t step, Range patches, const at::Tensor& output)> update;
  // First stage: these latents have come; input() may ask for them from now on.
  std::function<void(int64_t step, Range patches, const at::Tensor& latents)> updated;

  // Uninitialised tensors to receive into: what the stage before gives; latents.
  std::function<at::Tensor(Range patches)> empty_hidden, empty_latents;

  std::function<void(int64_t step)> began, ended;  // a step, on this rank; may throw
};

// Runs all steps. All ranks of `group`, which stand in the order of the stages, must call this with the same
// schedule. No rank waits for a send; receives are posted before the work that they are hidden behind.
void run_pipeline(const PipelineSchedule& schedule, const PipelineStage& stage, const comm::Group& group);

}  // namespace tessera::parallel
