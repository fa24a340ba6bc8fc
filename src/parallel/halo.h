// Computes which rows of an image that is split over ranks a layer reads beyond a rank's local rows.
#pragma once

#include <cstdint>
#include <vector>

#include "core/range.h"

namespace tessera::parallel {

// The geometry of a convolution along rows: output row o reads the `kernel` input rows from o * stride -
// padding on.
struct RowWindow {
  int64_t kernel = 1, stride = 1, padding = 0;

  // The input rows that these output rows read, including rows outside of the image.
  Range inputs(const Range& outputs) const {
    return {outputs.begin * stride - padding,
            outputs.length == 0 ? 0 : (outputs.length - 1) * stride + kernel};
  }
};

// Rank r holds the input rows inputs[r] and computes the output rows outputs[r]; ranges go from the top to
// the bottom in the order of the ranks. A rank may hold no rows, and a window may reach beyond the
// neighbour's rows.
class HaloPlan {
 public:
  HaloPlan(std::vector<Range> inputs, const std::vector<Range>& outputs, const RowWindow& window);

  // The rows of the image that `from` holds and `to` reads; may be empty.
  Range rows(int64_t from, int64_t to) const;
  // How many rows `rank` reads above and below its local rows, including rows outside of the image.
  int64_t above(int64_t rank) const;
  int64_t below(int64_t rank) const;

 private:
  const Range& held(int64_t rank) const { return inputs_[static_cast<size_t>(rank)]; }
  const Range& read(int64_t rank) const { return reads_[static_cast<size_t>(rank)]; }

  std::vector<Range> inputs_, reads_;
};

}  // namespace tessera::parallel
