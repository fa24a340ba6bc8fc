#include "nn/tensor_parallel.h"

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::nn {
namespace {

ops::Linear read_columns(const std::vector<ColumnParallel::Layer>& layers, int64_t in,
                         ops::LinearOptions options) {
  const comm::TensorGroups& groups = *layers.front().scope.groups();
  std::vector<ops::LayerPart> parts;
  for (const auto& [scope, out, first, all] : layers) {
    TESSERA_CHECK(out.units == layers.front().out.units, "layers split into {} and {} units", out.units,
                  layers.front().out.units);
    const Range own = times(groups.inner.part(out.units), out.unit);
    parts.push_back({scope, all, {first + own.begin, own.length}});
  }
  return ops::read_linear(parts, in, groups.outer.part(in), options, groups.outer.rank == 0);
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
  // Groups the outputs by unit across all layers, so that one message carries a rank's units of every layer.
  const int64_t last = terms.dim() - 1, units = groups_->inner.part(out_.front().units).length;
  std::vector<at::Tensor> by_unit;
  int64_t from = 0;
  for (const Split& split : out_) {
    by_unit.push_back(terms.narrow(last, from, units * split.unit).unflatten(last, {units, split.unit}));
    from += units * split.unit;
  }
  const at::Tensor own =
      comm::reduce_scatter(by_unit.size() == 1 ? by_unit[0] : at::concat(by_unit, last + 1), last,
                           outer.parts(units), outer);  // [..., local units, outputs per unit]
  std::vector<at::Tensor> outputs;
  from = 0;
  for (const Split& split : out_) {
    outputs.push_back(own.narrow(last + 1, from, split.unit).flatten(last));
    from += split.unit;
  }
  return ops::activate(outputs.size() == 1 ? outputs[0] : at::concat(outputs, last), activation);
}

std::vector<at::Tensor> ColumnParallel::split(const at::Tensor& outputs) const {
  const int64_t units = groups_->part(out_.front().units).length;
  std::vector<at::Tensor> parts;
  int64_t from = 0;
  for (const Split& split : out_) {
    parts.push_back(outputs.narrow(-1, from, units * split.unit));
    from += units * split.unit;
  }
  return parts;
}

std::vector<at::Tensor> ColumnParallel::each(const at::Tensor& x) const {
  return split((*this)(x));
}

RowParallel::RowParallel(const weights::Scope& scope, Split in, int64_t out, ops::LinearOptions options)
    : linear_(ops::read_linear({{scope, out, scope.groups()->outer.part(out)}}, in.features(),
                               times(scope.groups()->inner.part(in.units), in.unit), options,
                               scope.groups()->inner.rank == 0)),
      in_(in),
      out_(out),
      groups_(scope.groups()) {}

at::Tensor RowParallel::operator()(const at::Tensor& x) const {
  const comm::Group &inner = groups_->inner, &outer = groups_->outer;
  const int64_t last = x.dim() - 1, units = inner.part(in_.units).length;
  const at::Tensor inputs = comm::all_gather(x, last, times(outer.parts(units), in_.unit), outer);
  const at::Tensor own = comm::all_reduce(linear_(inputs), inner);
  return comm::all_gather(own, last, outer.parts(out_), outer);
}

at::Tensor read_split(const weights::Scope& scope, std::string_view name, at::IntArrayRef shape, int64_t dim,
                      Split split) {
  const Range own = times(scope.groups()->part(split.units), split.unit);
  return scope.tensor(name, shape, weights::Slice{dim, own.begin, own.length});
}

}  // namespace tessera::nn
