#include "ops/heads.h"

#include <ATen/Functions.h>

#include "core/device.h"
#include "core/error.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

at::Tensor rotated(const at::Tensor& x, const HeadPreparation& how) {  // x [B, n, H, D]
  const int64_t member = how.pairs == RotaryPairs::kHalves ? 3 : 4;    // the dimension of a pair's two
  const at::Tensor pairs = member == 3 ? x.unflatten(3, {2, -1}) : x.unflatten(3, {-1, 2});
  const at::Tensor cos = how.angles.select(2, 0).unsqueeze(1), sin = how.angles.select(2, 1).unsqueeze(1);
  const at::Tensor first = pairs.select(member, 0), second = pairs.select(member, 1);
  return at::stack({first * cos - second * sin, first * sin + second * cos}, member).flatten(3);
}

at::Tensor prepared_by_aten(const at::Tensor& x, const HeadPreparation& how, int64_t depth) {
  at::Tensor y = x.to(at::kFloat).unflatten(2, {-1, depth});
  if (how.rotates_first && how.angles.defined()) y = rotated(y, how);
  if (how.weight.defined())
    y = y * at::rsqrt(y.square().mean(-1, /*keepdim=*/true) + how.epsilon) * how.weight;
  if (!how.rotates_first && how.angles.defined()) y = rotated(y, how);
  return y.flatten(2).to(x.scalar_type());
}

}  // namespace

at::Tensor prepare_heads(const at::Tensor& x, const HeadPreparation& how, std::string_view role) {
  const OperationScope scope;
  TESSERA_CHECK(how.weight.defined() || how.angles.defined(), "neither a norm nor angles");
  const int64_t depth = how.weight.defined() ? how.weight.size(0) : 2 * how.angles.size(1);
  TESSERA_CHECK(
      x.dim() == 3 && x.size(2) % depth == 0 &&
          (!how.angles.defined() || (how.angles.size(0) == x.size(1) && 2 * how.angles.size(1) == depth)),
      "{} features of {} tokens do not fit heads of {}", x.size(-1), x.size(1), depth);
  if (how.weight.defined()) record("rms_norm", role, x, 4 * x.numel(), {x, how.weight});
  if (how.angles.defined()) record("rotary", "", x, 3 * x.numel(), {x, how.angles});
  const bool has_kernel =
      is_for_cpu(x.device()) && depth <= kernels::kMaxHeadDepth &&
      (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
  at::Tensor out;
  if (!has_kernel) {
    out = prepared_by_aten(x, how, depth);
  } else {
    const at::Tensor rows = x.stride(2) == 1 ? x : x.contiguous();
    out = at::empty(x.sizes(), x.options());
    if (!x.is_meta()) kernels::prepare_heads_into(out, rows, how, depth);
  }
  record_dataflow([&] {
    return Dataflow{"prepare_heads",
                    role,
                    {x, how.weight, how.angles},
                    {out},
                    {{"depth", depth},
                     {"epsilon", how.epsilon},
                     {"rotates_first", how.rotates_first},
                     {"pairs_are_halves", how.pairs == RotaryPairs::kHalves}}};
  });
  return out;
}

}  // namespace tessera::ops
