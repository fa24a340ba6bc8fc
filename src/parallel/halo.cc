#include "parallel/halo.h"

#include <algorithm>
#include <utility>

namespace tessera::parallel {

HaloPlan::HaloPlan(std::vector<Range> inputs, const std::vector<Range>& outputs, const RowWindow& window)
    : inputs_(std::move(inputs)) {
  for (const Range& own : outputs) reads_.push_back(window.inputs(own));
}

Range HaloPlan::rows(int64_t from, int64_t to) const {
  const Range common = overlap(held(from), read(to));
  return from == to ? Range{common.begin, 0} : common;
}

int64_t HaloPlan::above(int64_t rank) const {
  return read(rank).length == 0 ? 0 : std::max<int64_t>(held(rank).begin - read(rank).begin, 0);
}

int64_t HaloPlan::below(int64_t rank) const {
  return read(rank).length == 0 ? 0 : std::max<int64_t>(read(rank).end() - held(rank).end(), 0);
}

}  // namespace tessera::parallel
