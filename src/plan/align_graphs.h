// Brings the graphs of all ranks into one form, so that one program serves all of them.
#pragma once

#include <span>
#include <vector>

#include "plan/graph.h"

namespace tessera::plan {

// Returns the graphs with the same arguments, numbers of values and nodes; they differ in places, in contents
// of constants, and in the parts of weights. A weight that only some ranks have, because they add it for all,
// is zero on the others. Throws Error(kUsage) for ranks that compute different things, or parts of different
// shapes.
std::vector<Graph> align_graphs(std::span<const Graph> ranks);

}  // namespace tessera::plan
