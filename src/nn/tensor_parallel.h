// Linear layers whose weights are split over ranks, in pairs: the first leaves each rank some of the outputs,
// what follows (attention of own heads, an activation) works on those, the second takes them and gives every
// rank all.
//
// One dimension (Megatron-LM, arXiv:1909.08053): outputs of the first and inputs of the second are split over
// `inner`. Two dimensions (after Optimus, arXiv:2104.05343, and the 2D cut of Colossal-AI): the weights of
// the first are cut into inputs over `outer` times outputs over `inner`, and the sums over `outer` are
// scattered, so that each rank ends with its part of the outputs; before the second these are gathered over
// `outer` again, its weights are cut into inputs over `inner` times outputs over `outer`. Weights are then 1
// / (inner * outer) on each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::nn {

// Units of `unit` features (the size of a head; 1) that the outputs of a first layer, or the inputs of a
// second one, are split by.
struct Split {
  int64_t units, unit;
  int64_t features() const { return units * unit; }
};

// The first of a pair.
class ColumnParallel {
 public:
  ColumnParallel() = default;
  // Several layers of one input as one product; weights [out.features(), in] each.
  ColumnParallel(const std::vector<weights::Scope>& scopes, int64_t in, Split out,
                 const comm::TensorGroups& groups);

  // x [..., in], the same on all ranks -> [..., layers * own], the layers' outputs side by side; own =
  // groups.part(units).length * unit.
  at::Tensor operator()(const at::Tensor& x, ops::Activation activation = ops::Activation::kNone) const;

 private:
  ops::Linear linear_;
  int64_t layers_ = 1;
  Split out_{};
  comm::TensorGroups groups_;
};

// The second of a pair.
class RowParallel {
 public:
  RowParallel() = default;
  // weight [out, in.features()]
  RowParallel(const weights::Scope& scope, Split in, int64_t out, const comm::TensorGroups& groups);

  // x [..., own] as a ColumnParallel of one layer with the same split leaves it -> [..., out], on all ranks.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ops::Linear linear_;
  Split in_{};
  int64_t out_ = 0;
  comm::TensorGroups groups_;
};

}  // namespace tessera::nn
