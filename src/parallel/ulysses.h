// Ulysses (DeepSpeed-Ulysses, arXiv:2309.14509): around attention, ranks change from own tokens of all heads
// to all tokens of own heads, and back. Heads and tokens that do not divide are split unevenly.
//
// Legend: B samples, n tokens of this rank, N tokens of the group, H heads, h heads of this rank, D size of a
// head.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "comm/group.h"

namespace tessera::parallel {

// x [B, n, parts * H * D] (parts: queries, keys, values: 3) -> [B, N, parts * h * D], whose memory is token
// by token [N, B, ...]. tokens[r]: tokens of rank r. One exchange. A group of one gives x.
at::Tensor tokens_to_heads(const at::Tensor& x, int64_t parts, int64_t heads, std::span<const int64_t> tokens,
                           const comm::Group& group);

// x [N, B, h * D], contiguous -> [B, n, H * D]. One exchange.
at::Tensor heads_to_tokens(const at::Tensor& x, int64_t heads, std::span<const int64_t> tokens,
                           const comm::Group& group);

}  // namespace tessera::parallel
