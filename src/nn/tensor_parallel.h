// Linear layers whose weights are split over the ranks of a Scope. They come in pairs: the first layer leaves
// each rank with some of the outputs, the code between (attention over local heads, an activation) works on
// those, and the second layer consumes them and gives every rank the whole result.
//
// In one dimension (Megatron-LM, arXiv:1909.08053), the outputs of the first layer and the inputs of the
// second are split over `inner`. In two dimensions (after Optimus, arXiv:2104.05343, and Colossal-AI's 2D
// tensor parallelism), the first layer's weights are split into inputs over `outer` times outputs over
// `inner`, and the sums over `outer` are scattered, so that each rank ends with its part of the outputs.
// Before the second layer these are gathered over `outer` again; its weights are split into inputs over
// `inner` times outputs over `outer`. Each rank then holds 1 / (inner * outer) of the weights.
//
// The features between the layers may have parts that are split in different units, such as the heads of
// attention and the columns of a feed-forward layer beside it. Each rank has its share of every part.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/group.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::nn {

// How the outputs of a first layer, or the inputs of a second one, are split: in units of `unit` features
// (the size of a head, of the queries that share a key, or 1).
struct Split {
  int64_t units = 0, unit = 1;
  int64_t features() const { return units * unit; }
};

// The first layer of a pair.
class ColumnParallel {
 public:
  struct Layer {
    weights::Scope scope;  // weight [all, in]; this layer's rows are [first, first + out.features())
    Split out;
    int64_t first = 0;
    int64_t all = out.features();
  };

  ColumnParallel() = default;
  ColumnParallel(const weights::Scope& scope, int64_t in, Split out, ops::LinearOptions options = {});
  // Computes several layers of one input as one product.
  ColumnParallel(const std::vector<Layer>& layers, int64_t in, ops::LinearOptions options = {});

  // x [..., in], the same on all ranks -> [..., local outputs], the layers' local outputs side by side.
  at::Tensor operator()(const at::Tensor& x, ops::Activation activation = ops::Activation::kNone) const;
  // The same as views, one per layer.
  std::vector<at::Tensor> each(const at::Tensor& x) const;
  std::vector<at::Tensor> split(const at::Tensor& outputs) const;

 private:
  ops::Linear linear_;  // its outputs are ordered by rank of `outer`, then by layer
  int64_t in_ = 0;
  std::vector<Split> out_;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

// The second layer of a pair.
class RowParallel {
 public:
  RowParallel() = default;
  // Reads `weight` [out, in.features()].
  RowParallel(const weights::Scope& scope, Split in, int64_t out, ops::LinearOptions options = {})
      : RowParallel(scope, std::vector<Split>{in}, out, options) {}
  // The inputs have several parts, one after the other.
  RowParallel(const weights::Scope& scope, std::vector<Split> in, int64_t out,
              ops::LinearOptions options = {});

  // x [..., local], the local outputs of layers of a ColumnParallel with the same splits, side by side ->
  // [..., out] on all ranks.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ops::Linear linear_;  // its inputs are ordered by rank of `outer`, then by part
  std::vector<Split> in_;
  int64_t out_ = 0;
  std::shared_ptr<const comm::TensorGroups> groups_;
};

// Reads the entries of a weight that belong to this rank's units; `shape` has split.features() along `dim`.
at::Tensor read_split(const weights::Scope& scope, std::string_view name, at::IntArrayRef shape, int64_t dim,
                      Split split);

}  // namespace tessera::nn
