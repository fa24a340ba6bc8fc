// Dynamic sequence parallelism (DSP, arXiv:2403.10266): attention within frames, or along them, treats them
// as independent samples. Ranks that divide the tokens of every such sample change to whole samples before
// the layers of this attention, and back after them. This takes two exchanges of one activation, whereas
// Ulysses sends queries, keys, values and results. Heads are not divided.
//
// Shapes: G samples of attention, g of this rank, n tokens of this rank in each sample, N tokens of the
// group, C channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "comm/group.h"

namespace tessera::parallel {

// x [G, n, C] -> [g, N, C], with the tokens in the order of the ranks. tokens[r] is the number of tokens of
// rank r. Takes one exchange. A group of one returns x.
at::Tensor tokens_to_samples(const at::Tensor& x, std::span<const int64_t> tokens, const comm::Group& group);

// The inverse: x [g, N, C] -> [G, n, C]; `samples` is G.
at::Tensor samples_to_tokens(const at::Tensor& x, int64_t samples, std::span<const int64_t> tokens,
                             const comm::Group& group);

}  // namespace tessera::parallel
