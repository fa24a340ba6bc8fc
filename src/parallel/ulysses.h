// Ulysses (DeepSpeed-Ulysses, arXiv:2309.14509): around attention, ranks change from own tokens of all heads
// to all tokens of own heads, and back. Heads and tokens that do not divide are split unevenly.
//
// Shapes: B samples, n tokens of this rank, N tokens of the group, H heads, h heads of this rank, D size of a
// head.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "comm/group.h"

namespace tessera::parallel {

// Heads are split by `units` that stay together: each part (queries, keys, values) has a multiple of them.
//
// parts [B, n, H * D], each with a number of heads of its own -> [B, N, h * D] each, in views of one memory
// that lies token by token. tokens[r]: tokens of rank r. One exchange. A group of one gives the parts.
std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& parts, int64_t units,
                                        std::span<const int64_t> tokens, const comm::Group& group);

// x [N, B, h * D], contiguous -> [B, n, H * D]; `width` is H * D. One exchange.
at::Tensor heads_to_tokens(const at::Tensor& x, int64_t width, int64_t units, std::span<const int64_t> tokens,
                           const comm::Group& group);

// This rank's share of the heads of x [.., H * D].
at::Tensor own_heads(const at::Tensor& x, int64_t units, const comm::Group& group);

}  // namespace tessera::parallel
