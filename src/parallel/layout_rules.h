// The rules for a layout, as values: judging makes no text, searches nothing and throws nothing, so that
// millions of layouts can be judged (bench/layouts.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/options.h"
#include "parallel/workload.h"

namespace tessera::parallel {

enum class Rule {
  kRange,  // each number is in its field's range; otherwise, no other rule is judged
  // About the number of ranks.
  kLaunched,   // `nproc` is what the launcher started
  kSimulator,  // one rank simulates
  kRanks,      // the degrees multiply to the number of ranks
  // About the degrees, with the model and the request.
  kPictures,        // a picture for each replica
  kBranches,        // two branches of guidance
  kStreams,         // blocks that can be dealt to stages
  kBlocks,          // a block for each stage
  kHeads,           // a head for each rank
  kSequence,        // a row or a frame for each sequence rank
  kDisplacedRows,   // and for each rank of displaced patches
  kDisplacedAlone,  // displaced patches cannot be combined with other methods that divide an image
  kElementwise,     // methods that divide an image need a sampler that can step a part of it
  kGuidance,        // PipeFusion needs guidance that can combine a patch by itself
  kSquare,          // a degree of 2D tensor parallelism is a product
  // About the other options.
  kDspDegree,
  kDspAttention,
  kWarmup,
  kDisplacedMode,
  kDisplacedSimulated,
  kSplitScheme,
  kSimulated,
  kTextEncoder,
  kVae,
  kSharesAlone,
  kShares,  // a positive share for each rank
  // About PipeFusion's own options.
  kPatchesAlone,
  kPatchAxisAlone,
  kStageBlocksAlone,
  kPatchAxis,
  kPatches,
  kStageBlocks
};

// Whether other degrees could satisfy the rule.
constexpr bool is_of_degrees(Rule rule) {
  return rule <= Rule::kSquare;
}

struct Violation {
  Rule rule;
  int64_t wished = 0, available = 0;  // if the rule compares numbers
  bool operator==(const Violation&) const = default;
};

// The number of ranks of a run. `world_size` is the number that a launcher has already started, if any.
int64_t ranks_of(const ParallelOptions& options, std::optional<int64_t> world_size);

// Returns the rules that a wish breaks, in the order of Rule; none for a layout that can run.
std::vector<Violation> violations(const ParallelOptions& options, const Workload& workload,
                                  std::optional<int64_t> world_size = std::nullopt);
// Only those for degrees that multiply to the right number of ranks.
std::vector<Violation> degree_violations(const ParallelOptions& options, const Workload& workload);

// Puts a violation into words, except kRange, for which check_fields() has them.
std::string describe(const Violation& violation, const ParallelOptions& options, const Workload& workload);

}  // namespace tessera::parallel
