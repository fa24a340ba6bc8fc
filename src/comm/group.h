// A group of ranks that share work along one axis of the mesh. Layers take the groups that they are split
// over. In a group of one, every collective is the identity, so the one-rank program is the N-rank program.
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
  std::string axis = {};                      // for reports: "tp", "ulysses", ...
  std::vector<int64_t> ranks = {};            // the members' ranks in the world, by their rank in the group
  std::shared_ptr<Transport> transport = {};  // empty in a group of one
  std::shared_ptr<CollectiveHooks> hooks = {};
  Shares shares = {};  // of the members

  // The part of a member (this rank), and those of all members, when `total` things are split by their
  // shares.
  Range part(int64_t total) const { return part(total, rank); }
  Range part(int64_t total, int64_t member) const { return split_by_shares(total, member, size, shares); }
  std::vector<Range> parts(int64_t total) const { return split_by_shares(total, size, shares); }
  // How many things the members take at a time, if they take things one after another.
  int64_t round() const { return things_of_round(size, shares); }
};

// The ranks that the weights of a layer are split over: a pair of layers has its inner dimension split over
// both axes (nn/tensor_parallel.h). In the 1-d scheme, `outer` has size 1.
struct TensorGroups {
  Group inner, outer;

  int64_t size() const { return inner.size * outer.size; }
  // This rank's share of `total` units (heads, columns) between the two layers.
  Range part(int64_t total) const {
    const Range over_inner = inner.part(total), over_outer = outer.part(over_inner.length);
    return {over_inner.begin + over_outer.begin, over_outer.length};
  }
};

}  // namespace tessera::comm
