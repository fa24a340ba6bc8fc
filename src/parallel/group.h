// A group of ranks that share a piece of work along one axis of the mesh. Layers take the groups that they
// are split over; a group of one makes every collective the identity, so the one-rank program is the N-rank
// program.
#pragma once

#include <cstdint>

namespace tessera::parallel {

struct Group {
  int64_t rank = 0;  // this rank's place in the group
  int64_t size = 1;
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

}  // namespace tessera::parallel
