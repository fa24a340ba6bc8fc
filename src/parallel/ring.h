// The ring of Ring Attention (arXiv:2310.01889): each rank's block travels around the ring, so that every
// rank sees all blocks while holding only two at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "comm/group.h"

namespace tessera::parallel {

// Calls `visit` with every rank's block, beginning with the local one, while the next block is in flight.
// `own` is contiguous; its shape may differ between ranks only in the first dimension, which is lengths[r] on
// rank r.
void ring_pass(const at::Tensor& own, std::span<const int64_t> lengths, const comm::Group& group,
               const std::function<void(const at::Tensor& block)>& visit);

}  // namespace tessera::parallel
