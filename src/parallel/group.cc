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

}  // namespace tessera::parallel
