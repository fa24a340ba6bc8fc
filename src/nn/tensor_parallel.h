// Linear layers whose weights are split over the ranks of a Scope, in pairs: the first leaves each rank some
// of the outputs, what follows (attention of own heads, an activation) works on those, the second takes them
// and gives every rank all.
//
// One dimension (Megatron-LM, arXiv:1909.08053): outputs of the first and inputs of the second are split over
// `inner`. Two dimensions (after Optimus, arXiv:2104.05343, and the 2D cut of Colossal-AI): the weights of
// the first are cut into inputs over `outer` times outputs over `inner`, and the sums over `outer` are
// scattered, so that each rank ends with its part of the outputs; before the second these are gathered over
// `outer` again, its weights are cut into inputs over `inner` times outputs over `outer`. Weights are then 1
// / (inner * outer) on each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/group.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::nn {

// Units of `unit` features (the size of a head, or of a head's queries; 1) that the outputs of a first layer,
// or the inputs of a second one, are split by.
struct Split {
  int64_t units = 0, unit = 1;
  int64_t features() const { return units * unit; }
};

// The first of a pair.
class ColumnParallel {
 public:
  struct Layer {
    weights::Scope scope;  // weight [all, in], of which this layer has [first, first + out.features())
    Split out;
    int64_t first = 0;
    int64_t all = out.features();
  };

  ColumnParallel() = default;
  ColumnParallel(const weights::Scope& scope, int64_t in, Split out, ops::LinearOptions options = {});
  // Several layers of one input as one product; they have the same number of units.
  ColumnParallel(const std::vector<Layer>& layers, int64_t in, ops::LinearOptions options = {});

  // x [..., in], the same on all ranks -> [..., own], the layers' own outputs side by side.
  at::Tensor operator()(const at::Tensor& x, ops::Activation activation = ops::Activation::kNone) const;
  // The same as views, one for each layer.
  std::vector<at::Tensor> each(const at::Tensor& x) const;
  std::vector<at::Tensor> split(const at::Tensor& outputs) const;

 private:
  ops::Linear linear_;
  int64_t in_ = 0;
  std::vector<Split> out_;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

// The second of a pair.
class RowParallel {
 public:
  RowParallel() = default;
  // weight [out, in.features()]
  RowParallel(const weights::Scope& scope, Split in, int64_t out, ops::LinearOptions options = {});

  // x [..., own] as a ColumnParallel of one layer with the same split leaves it -> [..., out], on all ranks.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ops::Linear linear_;
  Split in_;
  int64_t out_ = 0;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

// The entries of a weight that go with this rank's units: `dim` of `shape` has split.features().
at::Tensor read_split(const weights::Scope& scope, std::string_view name, at::IntArrayRef shape, int64_t dim,
                      Split split);

}  // namespace tessera::nn
