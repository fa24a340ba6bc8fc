// A group of ranks that share a piece of work along one axis of the mesh. Layers take the groups that they
// are split over; a group of one makes every collective the identity, so the one-rank program is the N-rank
// program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::parallel {

class Transport;
struct OperationHooks;

struct Group {
  int64_t rank = 0;  // this rank's place in the group
  int64_t size = 1;
  std::string axis = {};            // for reports: "tp", "ulysses", ...
  std::vector<int64_t> ranks = {};  // the members' numbers in the world, by their place in the group
  std::shared_ptr<Transport> transport = {};  // none in a group of one
  std::shared_ptr<OperationHooks> hooks = {};
};

// A contiguous part of [0, total).
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Range&) const = default;
};

// This rank's part of `total` items: parts differ by at most one, larger parts first (30 over 4: 8, 8, 7, 7).
// With more ranks than items the last ranks get none.
Range split_evenly(int64_t total, const Group& group);
// The part of each rank of the group.
std::vector<Range> split_evenly_all(int64_t total, int64_t ranks);

}  // namespace tessera::parallel
