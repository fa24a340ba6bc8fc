#include "nn/tensor_parallel.h"

#include "comm/collectives.h"

namespace tessera::nn {
ColumnParallel::ColumnParallel(const std::vector<weights::Scope>& scopes, int64_t in, Split out,
                               const comm::TensorGroups& groups)
    : linear_(ops::read_linear(scopes, in, out.features(), times(groups.inner.part(out.units), out.unit),
                               groups.outer.part(in), groups.outer.rank == 0)),
      layers_(static_cast<int64_t>(scopes.size())),
      out_(out),
      groups_(groups) {}

at::Tensor ColumnParallel::operator()(const at::Tensor& x, ops::Activation activation) const {
  if (groups_.outer.size == 1) return linear_(x, activation);
  const Range inputs = groups_.outer.part(x.size(-1));
  const at::Tensor terms = linear_(x.narrow(-1, inputs.begin, inputs.length).contiguous());
  const int64_t units = groups_.inner.part(out_.units).length;
  const at::Tensor by_layer = terms.unflatten(-1, {layers_, units * out_.unit});
  const at::Tensor own = comm::reduce_scatter(by_layer, by_layer.dim() - 1,
                                              times(groups_.outer.parts(units), out_.unit), groups_.outer);
  return ops::activate(own.flatten(-2), activation);
}

RowParallel::RowParallel(const weights::Scope& scope, Split in, int64_t out, const comm::TensorGroups& groups)
    : linear_(ops::read_linear({scope}, in.features(), out, groups.outer.part(out),
                               times(groups.inner.part(in.units), in.unit), groups.inner.rank == 0)),
      in_(in),
      out_(out),
      groups_(groups) {}

at::Tensor RowParallel::operator()(const at::Tensor& x) const {
  const int64_t last = x.dim() - 1;
  const int64_t units = groups_.inner.part(in_.units).length;
  const at::Tensor inputs =
      comm::all_gather(x, last, times(groups_.outer.parts(units), in_.unit), groups_.outer);
  const at::Tensor own = comm::all_reduce(linear_(inputs), groups_.inner);
  return comm::all_gather(own, last, groups_.outer.parts(out_), groups_.outer);
}

}  // namespace tessera::nn
