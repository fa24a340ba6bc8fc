// Ulysses (DeepSpeed-Ulysses, arXiv:2309.14509): before attention, ranks change from local tokens of all
// heads to all tokens of local heads, and back after it. Heads and tokens that do not divide evenly are split
// unevenly.
//
// Shapes: B samples, n tokens of this rank, N tokens of the group, H heads, h heads of this rank, D size of a
// head.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "comm/group.h"

namespace tessera::parallel {

// Heads are dealt in `units`: each part (queries, keys, values) has a multiple of them as its number of
// heads, and the heads of a unit stay on one rank.
//
// parts [B, n, H * D], each with its own number of heads -> [B, N, h * D] each, as views of one memory in the
// order of the tokens. tokens[r] is the number of tokens of rank r. Takes one exchange. A group of one
// returns the parts.
std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& parts, int64_t units,
                                        std::span<const int64_t> tokens, const comm::Group& group);

// x [N, B, h * D], contiguous -> [B, n, H * D]; `width` is H * D. Takes one exchange.
at::Tensor heads_to_tokens(const at::Tensor& x, int64_t width, int64_t units, std::span<const int64_t> tokens,
                           const comm::Group& group);

}  // namespace tessera::parallel
