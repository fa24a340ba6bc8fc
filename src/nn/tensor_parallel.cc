#include "nn/tensor_parallel.h"

#include "parallel/collectives.h"

namespace tessera::nn {
namespace {

using parallel::Range;
using parallel::split_evenly;
using parallel::split_evenly_all;

Range times(const Range& range, int64_t unit) {
  return {range.begin * unit, range.length * unit};
}

std::vector<Range> times(std::vector<Range> ranges, int64_t unit) {
  for (Range& range : ranges) range = times(range, unit);
  return ranges;
}

}  // namespace

Range TensorGroups::part(int64_t total) const {
  const Range over_inner = split_evenly(total, inner);
  const Range over_outer = split_evenly(over_inner.length, outer);
  return {over_inner.begin + over_outer.begin, over_outer.length};
}

ColumnParallel::ColumnParallel(const std::vector<weights::Scope>& scopes, int64_t in, Split out,
                               const TensorGroups& groups)
    : linear_(read_linear(scopes, in, out.features(), times(split_evenly(out.units, groups.inner), out.unit),
                          split_evenly(in, groups.outer), groups.outer.rank == 0)),
      layers_(static_cast<int64_t>(scopes.size())),
      out_(out),
      groups_(groups) {}

at::Tensor ColumnParallel::operator()(const at::Tensor& x, Activation activation) const {
  if (groups_.outer.size == 1) return linear_(x, activation);
  const Range inputs = split_evenly(x.size(-1), groups_.outer);
  const at::Tensor terms = linear_(x.narrow(-1, inputs.begin, inputs.length).contiguous());
  const int64_t units = split_evenly(out_.units, groups_.inner).length;
  const at::Tensor by_layer = terms.unflatten(-1, {layers_, units * out_.unit});
  const at::Tensor own =
      parallel::reduce_scatter(by_layer, by_layer.dim() - 1,
                               times(split_evenly_all(units, groups_.outer.size), out_.unit), groups_.outer);
  return activate(own.flatten(-2), activation);
}

RowParallel::RowParallel(const weights::Scope& scope, Split in, int64_t out, const TensorGroups& groups)
    : linear_(read_linear({scope}, in.features(), out, split_evenly(out, groups.outer),
                          times(split_evenly(in.units, groups.inner), in.unit), groups.inner.rank == 0)),
      in_(in),
      out_(out),
      groups_(groups) {}

at::Tensor RowParallel::operator()(const at::Tensor& x) const {
  const int64_t last = x.dim() - 1;
  const int64_t units = split_evenly(in_.units, groups_.inner).length;
  const at::Tensor inputs = parallel::all_gather(
      x, last, times(split_evenly_all(units, groups_.outer.size), in_.unit), groups_.outer);
  const at::Tensor own = parallel::all_reduce(linear_(inputs), groups_.inner);
  return parallel::all_gather(own, last, split_evenly_all(out_, groups_.outer.size), groups_.outer);
}

}  // namespace tessera::nn
