// What happens to each head of queries and keys before attention: an RMS norm (arXiv:1910.07467), and rotary
// position embedding (RoFormer, arXiv:2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/heads.h"

namespace tessera::ops {

using kernels::HeadPreparation;
using kernels::RotaryPairs;

// Normalises each head of x [B, n, H * D], and rotates its pairs by the angles of its token. Either of the
// two determines D. Computed in fp32, rounded once. The norm is recorded with `role` as 4 FLOPs per element,
// the rotation as 3.
at::Tensor prepare_heads(const at::Tensor& x, const HeadPreparation& how, std::string_view role = "");

}  // namespace tessera::ops
