// Gathers pictures of all replicas on the first replica.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"
#include "core/image.h"

namespace tessera::engine {

// Gathers x [n, ...] of each replica to [count, ...] on the first one; undefined on others. `replicas` has
// one rank per replica, the one that holds its pictures; all of them must call.
at::Tensor gather_pictures(const at::Tensor& x, int64_t count, const comm::Group& replicas);
// Gathers decoded pictures, all of one size; empty on the other replicas. `host` is the CPU, or meta for
// images that have only a size.
std::vector<Image> gather_pictures(std::vector<Image> images, int64_t count, const comm::Group& replicas,
                                   at::Device host);

}  // namespace tessera::engine
