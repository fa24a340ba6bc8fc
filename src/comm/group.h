// A group of ranks that share a piece of work along one axis of the mesh. Layers take the groups that they
// are split over; a group of one makes every collective the identity, so the one-rank program is the N-rank
// program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/range.h"

namespace tessera::comm {

class Transport;
struct CollectiveHooks;

struct Group {
  int64_t rank = 0;  // this rank's place in the group
  int64_t size = 1;
  std::string axis = {};            // for reports: "tp", "ulysses", ...
  std::vector<int64_t> ranks = {};  // the members' numbers in the world, by their place in the group
  std::shared_ptr<Transport> transport = {};  // none in a group of one
  std::shared_ptr<CollectiveHooks> hooks = {};

  // This rank's part of `total` things, and that of every rank.
  Range part(int64_t total) const { return split_evenly(total, rank, size); }
  std::vector<Range> parts(int64_t total) const { return split_evenly(total, size); }
};

// The ranks that the weights of a layer are split over: a pair of layers has its middle cut over both axes
// (nn/tensor_parallel.h). `outer` has size 1 in one dimension.
struct TensorGroups {
  Group inner, outer;

  int64_t size() const { return inner.size * outer.size; }
  // This rank's part of `total` units (heads, columns), between the pair.
  Range part(int64_t total) const {
    const Range over_inner = inner.part(total), over_outer = outer.part(over_inner.length);
    return {over_inner.begin + over_outer.begin, over_outer.length};
  }
};

}  // namespace tessera::comm
