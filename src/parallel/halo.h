// Which rows of a picture that lies on several ranks a layer reads beyond those that a rank holds.
#pragma once

#include <cstdint>
#include <vector>

#include "core/range.h"

namespace tessera::parallel {

// How a convolution goes over rows: output row o reads input rows o * stride - padding and the kernel - 1
// after it.
struct RowWindow {
  int64_t kernel = 1, stride = 1, padding = 0;

  // The input rows that some output rows read, also where they lie outside of the picture.
  Range inputs(const Range& outputs) const {
    return {outputs.begin * stride - padding,
            outputs.length == 0 ? 0 : (outputs.length - 1) * stride + kernel};
  }
};

// Of the ranks that hold the input rows `inputs` and compute the output rows `outputs`, by rank, one after
// the other from the top. A rank may hold none, and a window may reach further than the neighbour's rows.
class HaloPlan {
 public:
  HaloPlan(std::vector<Range> inputs, const std::vector<Range>& outputs, const RowWindow& window);

  // The rows of the picture that `from` holds and `to` reads, if any.
  Range rows(int64_t from, int64_t to) const;
  // How many rows `rank` reads before and after its own, those outside of the picture included.
  int64_t above(int64_t rank) const;
  int64_t below(int64_t rank) const;

 private:
  const Range& held(int64_t rank) const { return inputs_[static_cast<size_t>(rank)]; }
  const Range& read(int64_t rank) const { return reads_[static_cast<size_t>(rank)]; }

  std::vector<Range> inputs_, reads_;
};

}  // namespace tessera::parallel
