// The sequences that attention runs over, and how they are cut into the parts of ranks and patches.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "parallel/displaced.h"
#include "parallel/grid.h"

namespace tessera::nn {

// The ranks that share the tokens of a run.
struct TokenGroups {
  comm::Group ulysses = {}, gather = {}, ring = {};
  comm::Group all = {};  // all three, in the order of the cut; or the ranks of `displaced`
  std::optional<parallel::Displacement> displaced = {};
  bool dsp = false;  // whether axial_attention() divides frames or places among the Ulysses ranks, instead of
                     // heads

  // Ulysses groups are numbered in the order of the cut.
  int64_t ulysses_groups() const { return gather.size * ring.size; }
  int64_t own_ulysses_group() const { return ring.rank * gather.size + gather.rank; }
  // The part of the cut that belongs to a rank, by the number of its Ulysses group and its number in the
  // group.
  int64_t part(int64_t group, int64_t in_ulysses) const { return group * ulysses.size + in_ulysses; }
};

// The tokens that a query attends to: all, those of its frame, or those at its position in every frame.
enum class Over { kAll, kSpatial, kTemporal };
inline constexpr std::array kOvers = {Over::kAll, Over::kSpatial, Over::kTemporal};

// The grid, one of its frames, one position across its frames, or the grid followed by sequences beside it,
// each of which is dealt to patches and ranks (Cut::part_beside()). The local tokens of such a sequence are
// in the order of patches. Refers to `cut` and `groups`, which must outlive it.
class TokenSequence {
 public:
  // `groups` are those that divide the sequence, `run` are the current patches, and `beside` are the lengths
  // of the sequences beside the grid, which only Over::kAll has.
  TokenSequence(const parallel::Cut& cut, const TokenGroups& groups, Range run, Over over,
                std::vector<int64_t> beside = {});

  const Range& run() const { return run_; }
  const TokenGroups& groups() const { return groups_; }
  int64_t patches() const { return cut_.patches; }

  // The number of local tokens of a part.
  int64_t length(int64_t part) const;
  // The number of tokens before `part` in `patch`, if tokens are ordered by patch, then by part.
  int64_t begin_of_patch(int64_t patch, int64_t part = 0) const;
  // The ranges of `patch` among the local tokens of a part.
  std::vector<Range> within(int64_t patch, int64_t part) const;

  // The number of local tokens on each rank of this rank's Ulysses group.
  std::vector<int64_t> of_ulysses() const;
  // The local tokens of each rank of the gather group, including those of its Ulysses group, one after the
  // other.
  std::vector<Range> of_gather() const;
  // Those of each rank of the ring, including those of its gather group.
  std::vector<Range> of_ring() const;

 private:
  int64_t length(Range patches, int64_t part) const;
  // The local tokens of one of the sequences beside the grid.
  int64_t beside(int64_t count, Range patches, int64_t part) const;
  // The local tokens of consecutive Ulysses groups, with `count` groups for each range.
  std::vector<Range> of_groups(int64_t first, int64_t ranges, int64_t count) const;

  const parallel::Cut& cut_;
  const TokenGroups& groups_;
  Range run_;
  Over over_;
  std::vector<int64_t> beside_;
};

}  // namespace tessera::nn
