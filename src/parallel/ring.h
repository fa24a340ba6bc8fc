// The ring of Ring Attention (arXiv:2310.01889): each rank's block travels around, so that every rank sees
// all blocks and holds two at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "comm/group.h"

namespace tessera::parallel {

// Calls `visit` with every rank's block, the own one first; the next is under way meanwhile. `own` is
// contiguous and changes between ranks in its first dimension alone: lengths[r] of rank r.
void ring_pass(const at::Tensor& own, std::span<const int64_t> lengths, const comm::Group& group,
               const std::function<void(const at::Tensor& block)>& visit);

}  // namespace tessera::parallel
