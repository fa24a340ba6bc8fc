#include "parallel/group.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::parallel {

Range split_evenly(int64_t total, const Group& group) {
  TESSERA_CHECK(group.size >= 1 && group.rank >= 0 && group.rank < group.size, "rank {} of {}", group.rank,
                group.size);
  TESSERA_CHECK(total >= 0, "{} items", total);
  const int64_t base = total / group.size;
  const int64_t larger = total % group.size;
  return {.begin = group.rank * base + std::min(group.rank, larger),
          .length = base + (group.rank < larger ? 1 : 0)};
}

std::vector<Range> split_evenly_all(int64_t total, int64_t ranks) {
  std::vector<Range> parts;
  for (int64_t rank = 0; rank < ranks; ++rank)
    parts.push_back(split_evenly(total, {.rank = rank, .size = ranks}));
  return parts;
}

}  // namespace tessera::parallel
