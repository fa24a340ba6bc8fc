// FLOPs as the published analysis of Open-Sora counts them in its graphs, whose operations are smaller than
// ours: one for each number that an addition, subtraction, multiplication, division, reciprocal square root,
// negation or exponential writes, and nothing for sums, maxima, tanh, powers and conversions; 2 m k n for a
// product; nothing for a convolution.
#pragma once

#include "plan/trace.h"

namespace tessera::plan {

struct PrintedFlops {
  int64_t products = 0, elementwise = 0;
};

// `texts` is the number of samples for cross-attention that multiplies the queries of each with the keys of
// all and masks those of others afterwards, as these graphs do; 1 for any other operation.
PrintedFlops printed_flops(const OperationEvent& operation, int64_t texts);

}  // namespace tessera::plan
