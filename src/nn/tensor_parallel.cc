#include "nn/tensor_parallel.h"

#include <utility>

#include "comm/collectives.h"

namespace tessera::nn {
namespace {

// Returns the features of a split that rank `peer` of `outer` has together with ranks at the same place in
// `inner`.
Range share_of(const Split& split, const comm::TensorGroups& groups, int64_t peer) {
  const Range over_inner = groups.inner.part(split.units);
  const Range over_outer = groups.outer.part(over_inner.length, peer);
  return times({over_inner.begin + over_outer.begin, over_outer.length}, split.unit);
}

// Returns the features of all splits that each rank of `outer` has, one rank after the other.
std::vector<Range> by_outer_rank(const std::vector<Split>& splits, const comm::TensorGroups& groups) {
  std::vector<Range> ranges;
  for (int64_t peer = 0; peer < groups.outer.size; ++peer) {
    ranges.push_back({ranges.empty() ? 0 : ranges.back().end(), 0});
    for (const Split& split : splits) ranges.back().length += share_of(split, groups, peer).length;
  }
  return ranges;
}

// A single message then carries what a rank of `outer` has of every layer.
ops::Linear read_columns(const std::vector<ColumnParallel::Layer>& layers, int64_t in,
                         ops::LinearOptions options) {
  const comm::TensorGroups& groups = *layers.front().scope.groups();
  std::vector<ops::LayerPart> parts;
  for (int64_t peer = 0; peer < groups.outer.size; ++peer) {
    for (const auto& [scope, out, first, all] : layers) {
      const Range own = share_of(out, groups, peer);
      parts.push_back({scope, all, {first + own.begin, own.length}});
    }
  }
  return ops::read_linear(parts, in, {groups.outer.part(in)}, options, groups.outer.rank == 0);
}

ops::Linear read_rows(const weights::Scope& scope, const std::vector<Split>& in, int64_t out,
                      ops::LinearOptions options) {
  const comm::TensorGroups& groups = *scope.groups();
  std::vector<Range> inputs;
  int64_t all = 0;
  for (int64_t peer = 0; peer < groups.outer.size; ++peer) {
    all = 0;
    for (const Split& split : in) {
      const Range own = share_of(split, groups, peer);
      inputs.push_back({all + own.begin, own.length});
      all += split.features();
    }
  }
  return ops::read_linear({{scope, out, groups.outer.part(out)}}, all, inputs, options,
                          groups.inner.rank == 0);
}

}  // namespace

ColumnParallel::ColumnParallel(const weights::Scope& scope, int64_t in, Split out, ops::LinearOptions options)
    : ColumnParallel({{scope, out}}, in, options) {}

ColumnParallel::ColumnParallel(const std::vector<Layer>& layers, int64_t in, ops::LinearOptions options)
    : linear_(read_columns(layers, in, options)), in_(in), groups_(layers.front().scope.groups()) {
  for (const Layer& layer : layers) out_.push_back(layer.out);
}

at::Tensor ColumnParallel::operator()(const at::Tensor& x, ops::Activation activation) const {
  const comm::Group& outer = groups_->outer;
  if (outer.size == 1) return linear_(x, activation);
  const Range inputs = outer.part(in_);
  const at::Tensor terms = linear_(x.narrow(-1, inputs.begin, inputs.length).contiguous());
  const at::Tensor own = comm::reduce_scatter(terms, terms.dim() - 1, by_outer_rank(out_, *groups_), outer);
  return ops::activate(own, activation);
}

std::vector<at::Tensor> ColumnParallel::split(const at::Tensor& outputs) const {
  std::vector<at::Tensor> parts;
  int64_t from = 0;
  for (const Split& split : out_) {
    const int64_t own = groups_->part(split.units).length * split.unit;
    parts.push_back(outputs.narrow(-1, from, own));
    from += own;
  }
  return parts;
}

std::vector<at::Tensor> ColumnParallel::each(const at::Tensor& x) const {
  return split((*this)(x));
}

RowParallel::RowParallel(const weights::Scope& scope, std::vector<Split> in, int64_t out,
                         ops::LinearOptions options)
    : linear_(read_rows(scope, in, out, options)), in_(std::move(in)), out_(out), groups_(scope.groups()) {}

at::Tensor RowParallel::operator()(const at::Tensor& x) const {
  const comm::Group &inner = groups_->inner, &outer = groups_->outer;
  const int64_t last = x.dim() - 1;
  const at::Tensor inputs = comm::all_gather(x, last, by_outer_rank(in_, *groups_), outer);
  const at::Tensor own = comm::all_reduce(linear_(inputs), inner);
  return comm::all_gather(own, last, outer.parts(out_), outer);
}

at::Tensor read_split(const weights::Scope& scope, std::string_view name, at::IntArrayRef shape, int64_t dim,
                      Split split) {
  const Range own = times(scope.groups()->part(split.units), split.unit);
  return scope.tensor(name, shape, weights::Slice{dim, own.begin, own.length});
}

}  // namespace tessera::nn
