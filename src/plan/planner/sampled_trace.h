// Traces in which equal blocks of the denoiser are run once and counted as often as a rank has them. The
// trace of a layout then takes a few milliseconds, so that a planner can afford hundreds.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "plan/trace.h"

namespace tessera::plan {

// Which blocks of a denoiser are equal: by block, the first that does the same operations on the same shapes.
// A model whose blocks do not divide (a U-Net) has none that count as equal: the list is empty.
std::vector<int64_t> equal_blocks(const engine::Settings& settings, const engine::Model& model);

// Traces ranks of a layout as trace_rank() does, the denoiser alone with the prompts of the greatest length:
// no encoding, no decoding. Roles of attention and weights of repeated blocks are left out, and the memory at
// an event is that of a rank whose repeated blocks leave nothing behind.
class SampledTraces {
 public:
  // Everything must outlive it. `equal` is that of equal_blocks().
  SampledTraces(const engine::Settings& settings, const engine::Model& model, const parallel::Layout& layout,
                int64_t steps, const std::vector<int64_t>& equal);

  // Stages between others do the same with other blocks and peers, and are run once.
  RankTrace of(int64_t rank);

 private:
  struct Sample {
    int64_t rank = 0;
    RankTrace trace;
    std::vector<int64_t> blocks;       // by event
    std::map<int64_t, int64_t> first;  // by kind, the block that ran for it
  };
  Sample run(int64_t rank, const std::vector<int64_t>& kinds) const;

  const engine::Settings& settings_;
  const engine::Model& model_;
  const parallel::Layout& layout_;
  int64_t steps_;
  const std::vector<int64_t>& equal_;
  std::map<std::vector<int64_t>, Sample> between_;  // of stages between others, by their kinds of blocks
};

// Repeats, in the steps of the denoiser, what a trace has of each block so often as `times` says, by block.
// `blocks` is by event (TraceOptions::blocks). Collectives get numbers of their own.
RankTrace repeat_blocks(const RankTrace& trace, const std::vector<int64_t>& blocks,
                        const std::map<int64_t, int64_t>& times);

}  // namespace tessera::plan
