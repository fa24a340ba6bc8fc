// One program for ranks that do different things: parts of different sizes, edges of an image, layers that
// only some of them have.
#pragma once

#include <span>
#include <vector>

#include "plan/align_graphs.h"
#include "plan/graph.h"
#include "plan/mlir_builder.h"

namespace tessera::plan {

// Between two collectives, each partition takes the branch of its rank. Values passed on to a collective or
// to later branches are padded with zeros to the largest part. `arguments` are those of the program, in the
// order of `shared`, without constants. Returns the results in the order of share_results(), of which each
// rank has the first elements. Throws Error(kUsage) for ranks whose collectives do not match, and for
// operations that cannot be expressed.
std::vector<MlirValue> lower_by_rank(std::span<const Graph> ranks, const SharedArguments& shared,
                                     const std::vector<MlirValue>& arguments, MlirBuilder& builder);

}  // namespace tessera::plan
