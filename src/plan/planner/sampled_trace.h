// Traces in which equal blocks of the denoiser are run once and counted as often as a rank has them. The
// trace of a layout then takes a few milliseconds, so that a planner can afford hundreds.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "plan/trace.h"

namespace tessera::plan {

// Which blocks of a denoiser are equal: by block, the first that does the same operations on the same shapes.
// A model whose blocks do not divide (a U-Net) has none that count as equal: the list is empty.
std::vector<int64_t> equal_blocks(const engine::Settings& settings, const engine::Model& model);

// What trace_rank() gives for the denoiser alone, with the prompts of the greatest length: no encoding, no
// decoding. Roles of attention and weights of repeated blocks are left out; the memory at an event is that of
// a rank whose repeated blocks leave nothing behind (plan/planner/prediction.h has the true peak).
RankTrace sampled_trace(const engine::Settings& settings, const engine::Model& model,
                        const parallel::Layout& layout, int64_t rank, int64_t steps,
                        const std::vector<int64_t>& equal);

// Repeats, in the steps of the denoiser, what a trace has of each block so often as `times` says, by block.
// `blocks` is by event (TraceOptions::blocks). Collectives get numbers of their own.
RankTrace repeat_blocks(const RankTrace& trace, const std::vector<int64_t>& blocks,
                        const std::vector<int64_t>& times);

}  // namespace tessera::plan
