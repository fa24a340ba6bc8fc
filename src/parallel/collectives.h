// Collectives: free functions over a Group. A group of one makes each the identity.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/group.h"

namespace tessera::parallel {

// The sum of `x` over the group. All ranks must call, with one shape and dtype.
at::Tensor all_reduce(const at::Tensor& x, const Group& group);

}  // namespace tessera::parallel
