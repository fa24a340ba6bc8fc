#include "plan/mlir_builder.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace tessera::plan {
namespace {

std::string list(const Sizes64& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

// A number in the form that MLIR reads, with the same bits.
std::string literal(double value, at::ScalarType dtype) {
  if (dtype == at::kBool) return value != 0 ? "true" : "false";
  if (!at::isFloatingType(dtype)) return fmt::format("{}", static_cast<int64_t>(value));
  if (std::isinf(value)) {
    const bool is_negative = value < 0;
    switch (dtype) {
      case at::kDouble:
        return is_negative ? "0xFFF0000000000000" : "0x7FF0000000000000";
      case at::kFloat:
        return is_negative ? "0xFF800000" : "0x7F800000";
      case at::kBFloat16:
        return is_negative ? "0xFF80" : "0x7F80";
      default:
        return is_negative ? "0xFC00" : "0x7C00";
    }
  }
  return fmt::format("{:.17e}", value);
}

std::string types_of(const std::vector<MlirValue>& operands) {
  std::string types;
  for (const MlirValue& each : operands) types += (types.empty() ? "" : ", ") + mlir_type(each.type);
  return types;
}

std::string names_of(const std::vector<MlirValue>& operands) {
  std::string names;
  for (const MlirValue& each : operands) names += (names.empty() ? "" : ", ") + each.name;
  return names;
}

}  // namespace

std::string_view mlir_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "f32";
    case at::kDouble:
      return "f64";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "f16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kBool:
      return "i1";
    default:
      throw Error(ErrorKind::kUsage, "stablehlo",
                  fmt::format("no form for numbers of type {}", at::toString(dtype)));
  }
}

std::string mlir_type(const TensorShape& shape) {
  std::string type = "tensor<";
  for (const int64_t size : shape.sizes) type += fmt::format("{}x", size);
  return type + std::string(mlir_dtype(shape.dtype)) + ">";
}

MlirValue MlirBuilder::argument(const TensorShape& type) {
  return {fmt::format("%arg{}", arguments_++), type};
}

void MlirBuilder::begin_node(NodeLocation location) {
  location_ = locations_->size();
  locations_->push_back(std::move(location));
}

MlirValue MlirBuilder::in_node(NodeLocation location, const std::function<MlirValue()>& write) {
  const size_t around = location_;
  begin_node(std::move(location));
  MlirValue value = write();
  location_ = around;
  return value;
}

std::string MlirBuilder::lines_of(const std::vector<MlirValue>& results, std::set<size_t>& named) const {
  std::vector<bool> is_needed(lines_.size());
  const auto need = [&](int64_t line) {
    if (line >= 0) is_needed[static_cast<size_t>(line)] = true;
  };
  for (const MlirValue& each : results) need(each.line);
  for (size_t i = lines_.size(); i-- > 0;) {
    if (!is_needed[i]) continue;
    for (const int64_t line : lines_[i].needs) need(line);
  }
  std::string all;
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (!is_needed[i]) continue;
    all += lines_[i].text;
    fmt::format_to(std::back_inserter(all), " loc(#loc{})\n", lines_[i].locations.front());
    named.insert(lines_[i].locations.begin(), lines_[i].locations.end());
  }
  return all;
}

MlirBuilder::Text MlirBuilder::text(const std::vector<MlirValue>& results) const {
  std::set<size_t> named;
  Text all{.lines = lines_of(results, named), .locations = {}};
  for (const size_t location : named)
    all.locations += fmt::format("#loc{} = {}\n", location, mlir_location((*locations_)[location]));
  return all;
}

MlirBuilder MlirBuilder::region() const {
  MlirBuilder made;
  made.depth_ = depth_ + 2;
  made.next_ = next_;
  made.locations_ = locations_;
  return made;
}

MlirValue MlirBuilder::outer(const MlirValue& value) {
  if (value.line >= 0) outer_.insert(value.line);
  MlirValue seen = value;
  seen.line = -1;
  return seen;
}

std::vector<MlirValue> MlirBuilder::branches(const MlirValue& index, const std::vector<MlirBuilder>& regions,
                                             const std::vector<std::vector<MlirValue>>& results) {
  const std::string indent(static_cast<size_t>(2 * depth_), ' ');
  std::vector<std::string> bodies;
  std::set<int64_t> needs = {index.line};
  std::set<size_t> named;
  for (size_t i = 0; i < regions.size(); ++i) {
    bodies.push_back(fmt::format("{{\n{}{}    stablehlo.return {} : {}\n{}}}",
                                 regions[i].lines_of(results[i], named), indent, names_of(results[i]),
                                 types_of(results[i]), indent));
    needs.insert(regions[i].outer_.begin(), regions[i].outer_.end());
    next_ = std::max(next_, regions[i].next_);
  }
  const std::vector<MlirValue>& types = results.front();
  const std::string name = fmt::format("%{}", next_++);
  Line line{fmt::format("{}{}:{} = \"stablehlo.case\"({}) ({}) : ({}) -> ({})", indent, name, types.size(),
                        index.name, fmt::join(bodies, ", "), mlir_type(index.type), types_of(types)),
            {needs.begin(), needs.end()},
            {location_}};
  line.locations.insert(line.locations.end(), named.begin(), named.end());
  std::vector<MlirValue> values;
  for (size_t i = 0; i < types.size(); ++i)
    values.push_back(
        {types.size() == 1 ? name : fmt::format("{}#{}", name, i), types[i].type, std::ssize(lines_)});
  lines_.push_back(std::move(line));
  return values;
}

MlirValue MlirBuilder::line(std::string_view name, const std::vector<MlirValue>& operands,
                            const std::string& words, TensorShape result) {
  MlirValue value{fmt::format("%{}", next_++), std::move(result), std::ssize(lines_)};
  Line line{fmt::format("{:{}}{} = {}{}", "", 2 * depth_, value.name, name, words), {}, {location_}};
  for (const MlirValue& each : operands) line.needs.push_back(each.line);
  lines_.push_back(std::move(line));
  return value;
}

MlirValue MlirBuilder::op(std::string_view name, const std::vector<MlirValue>& operands,
                          const std::string& words, TensorShape result) {
  std::string rest = fmt::format(" {}{}{} : ({}) -> {}", names_of(operands), words.empty() ? "" : ", ", words,
                                 types_of(operands), mlir_type(result));
  return line(fmt::format("stablehlo.{}", name), operands, rest, std::move(result));
}

MlirValue MlirBuilder::reshape(const MlirValue& x, Sizes64 sizes) {
  TESSERA_CHECK(c10::multiply_integers(x.sizes()) == c10::multiply_integers(sizes), "{} is no shape for {}",
                list(sizes), mlir_type(x.type));
  const auto found = reshaped_.find(x.name);
  const MlirValue& from = found == reshaped_.end() ? x : found->second;
  if (sizes == x.sizes()) return x;
  if (sizes == from.sizes()) return from;
  MlirValue y = op("reshape", {from}, "", {std::move(sizes), x.type.dtype});
  reshaped_.emplace(y.name, from);
  return y;
}

MlirValue MlirBuilder::transpose(const MlirValue& x, const Sizes64& order) {
  Sizes64 sizes, moved;  // dimensions of one element can move freely
  for (const int64_t dim : order) {
    sizes.push_back(x.size(dim));
    if (x.size(dim) > 1) moved.push_back(dim);
  }
  if (std::is_sorted(moved.begin(), moved.end())) return reshape(x, std::move(sizes));
  return op("transpose", {x}, "dims = " + list(order), {std::move(sizes), x.type.dtype});
}

MlirValue MlirBuilder::convert(const MlirValue& x, at::ScalarType dtype) {
  return x.type.dtype == dtype ? x : op("convert", {x}, "", {x.sizes(), dtype});
}

MlirValue MlirBuilder::slice(const MlirValue& x, const Sizes64& begins, const Sizes64& lengths) {
  if (lengths == x.sizes()) return x;
  std::string ranges;
  for (size_t i = 0; i < begins.size(); ++i)
    ranges += fmt::format("{}{}:{}", i == 0 ? "" : ", ", begins[i], begins[i] + lengths[i]);
  const TensorShape result{lengths, x.type.dtype};
  return line("stablehlo.slice", {x},
              fmt::format(" {} [{}] : ({}) -> {}", x.name, ranges, mlir_type(x.type), mlir_type(result)),
              result);
}

MlirValue MlirBuilder::broadcast(const MlirValue& x, const Sizes64& sizes, const Sizes64& dims) {
  if (sizes == x.sizes()) return x;
  return op("broadcast_in_dim", {x}, "dims = " + list(dims), {sizes, x.type.dtype});
}

MlirValue MlirBuilder::broadcast(const MlirValue& x, const Sizes64& sizes) {
  Sizes64 dims(x.sizes().size());
  std::iota(dims.begin(), dims.end(), std::ssize(sizes) - x.dims());
  return broadcast(x, sizes, dims);
}

MlirValue MlirBuilder::scalar(double value, at::ScalarType dtype) {
  return filled(value, {{}, dtype});
}

MlirValue MlirBuilder::filled(double value, const TensorShape& type) {
  return line("stablehlo.constant", {},
              fmt::format(" dense<{}> : {}", literal(value, type.dtype), mlir_type(type)), type);
}

MlirValue MlirBuilder::constant(const at::Tensor& contents) {
  const TensorShape type{contents.sizes().vec(), contents.scalar_type()};
  if (contents.numel() == 1) return filled(contents.to(at::kDouble).item<double>(), type);
  std::string words = " dense<";
  if (contents.numel() == 0) {
    words += "";
  } else if (type.dtype == at::kBool) {  // MLIR packs bits, but accepts bytes only in a list
    const at::Tensor numbers = contents.to(at::kInt);
    return op("convert", {constant(numbers)}, "", type);
  } else {
    const at::Tensor plain = contents.contiguous();
    const auto* bytes = static_cast<const uint8_t*>(plain.const_data_ptr());
    words += "\"0x";
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    for (size_t i = 0; i < plain.nbytes(); ++i) {
      words += kDigits[bytes[i] >> 4];
      words += kDigits[bytes[i] & 15];
    }
    words += '"';
  }
  return line("stablehlo.constant", {}, words + fmt::format("> : {}", mlir_type(type)), type);
}

MlirValue MlirBuilder::iota(const TensorShape& type, int64_t dim) {
  return line("stablehlo.iota", {}, fmt::format(" dim = {} : {}", dim, mlir_type(type)), type);
}

MlirValue MlirBuilder::binary(std::string_view name, const MlirValue& a, const MlirValue& b) {
  TESSERA_CHECK(a.type.dtype == b.type.dtype, "{} of {} and {}", name, mlir_type(a.type), mlir_type(b.type));
  const Sizes64 sizes = at::infer_size(a.sizes(), b.sizes());
  const MlirValue left = broadcast(a, sizes), right = broadcast(b, sizes);
  return op(name, {left, right}, "", left.type);
}

MlirValue MlirBuilder::binary(std::string_view name, const MlirValue& a, double b) {
  return binary(name, a, filled(b, a.type));
}

MlirValue MlirBuilder::compare(std::string_view direction, const MlirValue& a, const MlirValue& b) {
  const Sizes64 sizes = at::infer_size(a.sizes(), b.sizes());
  const MlirValue left = broadcast(a, sizes), right = broadcast(b, sizes);
  return line("stablehlo.compare", {left, right},
              fmt::format(" {}, {}, {} : ({}) -> {}", direction, left.name, right.name,
                          types_of({left, right}), mlir_type({sizes, at::kBool})),
              {sizes, at::kBool});
}

MlirValue MlirBuilder::select(const MlirValue& which, const MlirValue& a, const MlirValue& b) {
  const Sizes64 sizes = at::infer_size(which.sizes(), at::infer_size(a.sizes(), b.sizes()));
  const MlirValue left = broadcast(a, sizes), right = broadcast(b, sizes);
  return op("select", {broadcast(which, sizes), left, right}, "", left.type);
}

MlirValue MlirBuilder::reduce(std::string_view name, const MlirValue& x, const Sizes64& dims) {
  Sizes64 sizes;
  for (int64_t i = 0; i < x.dims(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) sizes.push_back(x.size(i));
  }
  // The neutral element.
  const bool is_float = at::isFloatingType(x.type.dtype);
  constexpr double kLargest = std::numeric_limits<int32_t>::max(),
                   kInfinity = std::numeric_limits<double>::infinity();
  const double most = is_float ? kInfinity : kLargest;
  const MlirValue first = scalar(name == "maximum" ? -most : name == "minimum" ? most : 0, x.type.dtype);
  const TensorShape result{sizes, x.type.dtype};
  return line("stablehlo.reduce", {x, first},
              fmt::format("({} init: {}) applies stablehlo.{} across dimensions = {} : ({}) -> {}", x.name,
                          first.name, name, list(dims), types_of({x, first}), mlir_type(result)),
              result);
}

MlirValue MlirBuilder::reduce_keeping(std::string_view name, const MlirValue& x, const Sizes64& dims) {
  Sizes64 sizes = x.sizes();
  for (const int64_t dim : dims) sizes[static_cast<size_t>(dim)] = 1;
  return reshape(reduce(name, x, dims), sizes);
}

MlirValue MlirBuilder::concat(const std::vector<MlirValue>& parts, int64_t dim) {
  if (parts.size() == 1) return parts.front();
  Sizes64 sizes = parts.front().sizes();
  int64_t& sum = sizes[static_cast<size_t>(dim)];
  sum = 0;
  for (const MlirValue& part : parts) sum += part.size(dim);
  return op("concatenate", parts, fmt::format("dim = {}", dim), {sizes, parts.front().type.dtype});
}

MlirValue MlirBuilder::pad(const MlirValue& x, const Sizes64& low, const Sizes64& high) {
  Sizes64 sizes = x.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] += low[i] + high[i];
  if (sizes == x.sizes()) return x;
  return op(
      "pad", {x, scalar(0, x.type.dtype)},
      fmt::format("low = {}, high = {}, interior = {}", list(low), list(high), list(Sizes64(low.size()))),
      {sizes, x.type.dtype});
}

MlirValue MlirBuilder::dot(const MlirValue& a, const MlirValue& b, int64_t batch_dims, int64_t of_a,
                           int64_t of_b, at::ScalarType dtype) {
  Sizes64 sizes, batch(static_cast<size_t>(batch_dims));
  std::iota(batch.begin(), batch.end(), int64_t{0});
  for (int64_t i = 0; i < a.dims(); ++i) {
    if (i != of_a) sizes.push_back(a.size(i));
  }
  for (int64_t i = batch_dims; i < b.dims(); ++i) {
    if (i != of_b) sizes.push_back(b.size(i));
  }
  std::string words = fmt::format("contracting_dims = [{}] x [{}]", of_a, of_b);
  if (batch_dims > 0) words = fmt::format("batching_dims = {} x {}, {}", list(batch), list(batch), words);
  return op("dot_general", {a, b}, words, {sizes, dtype});
}

MlirValue MlirBuilder::gather(const MlirValue& x, const MlirValue& index, int64_t dim, const Sizes64& offsets,
                              const Sizes64& sizes, const TensorShape& result) {
  const std::string words = fmt::format(
      "({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = [{}], "
      "start_index_map = [{}], index_vector_dim = 1>, slice_sizes = array<i64: {}>, indices_are_sorted = "
      "false}}> : ({}) -> {}",
      x.name, index.name, list(offsets), dim, dim, fmt::join(sizes, ", "), types_of({x, index}),
      mlir_type(result));
  return line("\"stablehlo.gather\"", {x, index}, words, result);
}

MlirValue MlirBuilder::convolution(const MlirValue& x, const MlirValue& weight, int64_t stride,
                                   const std::array<std::array<int64_t, 2>, 2>& padding,
                                   const TensorShape& result) {
  return line(
      "stablehlo.convolution", {x, weight},
      fmt::format(
          "({}, {}) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{stride = [{}, {}], "
          "pad = [[{}, {}], [{}, {}]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : "
          "({}, {}) -> {}",
          x.name, weight.name, stride, stride, padding[0][0], padding[0][1], padding[1][0], padding[1][1],
          mlir_type(x.type), mlir_type(weight.type), mlir_type(result)),
      result);
}

// Each partition sends its number j to partition j, so number i receives i from all. StableHLO's partition_id
// cannot be used: XLA's partitioner refuses it.
MlirValue MlirBuilder::partition() {
  if (partition_) return *partition_;
  partition_ = in_node({.name = "collective.all_to_all", .role = "partition"}, [&] {
    std::vector<int64_t> all(static_cast<size_t>(partitions_));
    std::iota(all.begin(), all.end(), int64_t{0});
    const TensorShape numbers{{partitions_}, at::kInt};
    const MlirValue received = collective(
        "all_to_all", iota(numbers, 0),
        fmt::format("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {0} : i64, "
                    "replica_groups = dense<[{1}]> : tensor<1x{0}xi64>",
                    partitions_, list(all)),
        false, numbers);
    return reshape(slice(received, {0}, {1}), {});
  });
  return *partition_;
}

MlirValue MlirBuilder::by_partition(const Sizes64& numbers) {
  const bool are_equal =
      std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
  if (are_equal) return scalar(static_cast<double>(numbers.front()), at::kInt);
  const MlirValue table = constant(at::tensor(numbers, at::kLong).to(at::kInt));
  return reshape(slice_at(table, {partition()}, {1}), {});
}

MlirValue MlirBuilder::by_partition(const std::vector<at::Tensor>& contents) {
  const MlirValue table = constant(at::stack(contents));
  std::vector<MlirValue> begins = {partition()};
  Sizes64 lengths = table.sizes();
  lengths.front() = 1;
  for (int64_t i = 1; i < table.dims(); ++i) begins.push_back(scalar(0, at::kInt));
  return reshape(slice_at(table, begins, lengths), contents.front().sizes().vec());
}

MlirValue MlirBuilder::slice_at(const MlirValue& x, const std::vector<MlirValue>& begins,
                                const Sizes64& lengths) {
  std::vector<MlirValue> operands = {x};
  operands.insert(operands.end(), begins.begin(), begins.end());
  return op("dynamic_slice", operands, "sizes = " + list(lengths), {lengths, x.type.dtype});
}

MlirValue MlirBuilder::update_at(const MlirValue& x, const MlirValue& part,
                                 const std::vector<MlirValue>& begins) {
  std::vector<MlirValue> operands = {x, part};
  operands.insert(operands.end(), begins.begin(), begins.end());
  return op("dynamic_update_slice", operands, "", x.type);
}

MlirValue MlirBuilder::collective(std::string_view name, const MlirValue& x, const std::string& attributes,
                                  bool is_sum, const TensorShape& result) {
  const std::string number = mlir_type({{}, x.type.dtype});
  const std::string sum = is_sum ? fmt::format(
                                       " ({{\n    ^bb0(%a: {0}, %b: {0}):\n      %s = stablehlo.add %a, %b : "
                                       "{0}\n      stablehlo.return %s : "
                                       "{0}\n    }})",
                                       number)
                                 : "";
  const std::string channel =
      fmt::format("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", ++channels_);
  const std::string ids = name == "all_gather" || is_sum ? ", use_global_device_ids" : "";
  return line(fmt::format("\"stablehlo.{}\"", name), {x},
              fmt::format("({}){} {{{}, {}{}}} : ({}) -> {}", x.name, sum, attributes, channel, ids,
                          mlir_type(x.type), mlir_type(result)),
              result);
}

MlirValue MlirBuilder::constrained(const MlirValue& x, const std::string& sharding) {
  return line("sdy.sharding_constraint", {x}, fmt::format(" {} {} : {}", x.name, sharding, mlir_type(x.type)),
              x.type);
}

MlirValue MlirBuilder::update(const MlirValue& x, const MlirValue& part, const Sizes64& begins) {
  if (part.sizes() == x.sizes()) return part;
  std::vector<MlirValue> places;
  for (const int64_t begin : begins) places.push_back(scalar(static_cast<double>(begin), at::kInt));
  return update_at(x, part, places);
}

}  // namespace tessera::plan
