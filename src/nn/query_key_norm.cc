#include "nn/query_key_norm.h"

#include <ATen/Functions.h>

#include "comm/collectives.h"
#include "ops/operation.h"

namespace tessera::nn {

HeadNorm::HeadNorm(const weights::Scope& scope, int64_t depth, double epsilon)
    : weight(scope.with_dtype(at::kFloat).tensor("weight", {depth})), epsilon(epsilon), role(scope.name()) {}

at::Tensor HeadNorm::operator()(const at::Tensor& x, const at::Tensor& angles, bool rotates_first,
                                ops::RotaryPairs pairs) const {
  return ops::prepare_heads(x, {weight, epsilon, angles, rotates_first, pairs}, role);
}

AcrossHeadsNorm::AcrossHeadsNorm(const weights::Scope& scope, Split heads, double epsilon)
    : weight_(read_split(scope.with_dtype(at::kFloat), "weight", {heads.features()}, 0, heads)),
      heads_(heads),
      epsilon_(epsilon),
      dtype_(scope.dtype()),
      groups_(scope.groups()) {}

at::Tensor AcrossHeadsNorm::operator()(const at::Tensor& x) const {
  const ops::OperationScope scope;
  ops::record("rms_norm", "", x, 4 * x.numel(), {x, weight_});
  const at::Tensor wide = x.to(at::kFloat);
  at::Tensor squares = wide.square().sum(-1, /*keepdim=*/true);
  squares = comm::all_reduce(comm::all_reduce(squares, groups_->inner), groups_->outer);
  const at::Tensor scale = at::rsqrt(squares / heads_.features() + epsilon_);
  at::Tensor out = (wide * scale).mul_(weight_).to(dtype_);
  if (groups_->size() == 1) {  // otherwise programs have no form for it yet
    ops::record_dataflow(
        [&] { return ops::Dataflow{"rms_norm", "", {x, weight_}, {out}, {{"epsilon", epsilon_}}}; });
  }
  return out;
}

}  // namespace tessera::nn
