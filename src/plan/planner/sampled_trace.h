// Traces in which equal blocks of the denoiser run once and are counted as often as a rank has them. The
// trace of a layout then takes only a few milliseconds, so a planner can afford hundreds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "plan/schedule.h"
#include "plan/trace.h"

namespace tessera::plan {

// Which blocks of a denoiser are equal: for each block, the first one that does the same operations on the
// same shapes. The list is empty for a model whose blocks cannot be divided (a U-Net): none of them count as
// equal. `prompts` as in TraceOptions.
std::vector<int64_t> equal_blocks(const engine::Settings& settings, const engine::Model& model,
                                  const std::vector<models::Conditioning>* prompts);

// The kinds, by equal_blocks(), of the blocks of a middle stage, in order: two such stages of a layout with
// the same kinds do the same. Empty for any other rank.
std::vector<int64_t> kinds_between(const parallel::Layout& layout, int64_t rank,
                                   const std::vector<int64_t>& equal);

// Consecutive events of a rank that happen this often.
struct Repeat {
  size_t begin = 0, end = 0;
  int64_t copies = 1;
};

// What a rank does, with the repeats of its steps in the order of its events.
struct SampledTrace {
  RankTrace trace;
  std::vector<Repeat> repeats;
};

std::vector<int64_t> copies_of(const std::vector<Repeat>& repeats, size_t events);  // by event

// Ranks that each do something different.
struct SampledRanks {
  Trace trace;
  std::vector<std::vector<Repeat>> repeats;  // by rank of the trace
  std::vector<size_t> stands_for;            // by rank of the world, as in make_schedule()
};

// Traces ranks of a layout as trace_rank() does, but only the denoiser: without decoding, and without
// encoding if `prompts` are given. Roles of attention and weights of repeated blocks are left out, and the
// memory at an event is that of a rank whose repeated blocks leave nothing behind.
class SampledTraces {
 public:
  // All arguments must outlive it. `equal` comes from equal_blocks(); `prompts` as in TraceOptions.
  SampledTraces(const engine::Settings& settings, const engine::Model& model, const parallel::Layout& layout,
                int64_t steps, const std::vector<int64_t>& equal,
                const std::vector<models::Conditioning>* prompts);

  // Middle stages do the same with other blocks and peers, so one of them runs.
  SampledTrace of(int64_t rank);

 private:
  struct Sample {
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
  const std::vector<models::Conditioning>* prompts_;
  std::map<std::vector<int64_t>, Sample> between_;  // for middle stages, by their kinds of blocks
};

// Repeats the tasks of a rank, which were made from its events. A wait for something that began outside a
// repeat happens once.
void repeat_tasks(RankSchedule& rank, const std::vector<Repeat>& repeats);

}  // namespace tessera::plan
