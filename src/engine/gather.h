// Pictures of all replicas on the first of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"
#include "core/image.h"

namespace tessera::engine {

// x [n, ...] of each replica to [count, ...] on the first, undefined elsewhere. `replicas`: the ranks, one of
// each, that hold pictures; all of them must call.
at::Tensor gather_pictures(const at::Tensor& x, int64_t count, const comm::Group& replicas);
// The same of decoded ones, which have one size; empty elsewhere.
std::vector<Image> gather_pictures(std::vector<Image> images, int64_t count, const comm::Group& replicas);

}  // namespace tessera::engine
