// The libtorch functions that models call between operations, in StableHLO. Arguments are those of the
// schemas.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

const GraphAttribute& argument(const GraphNode& node, size_t i) {
  static const GraphAttribute none;
  return i < node.arguments.size() ? node.arguments[i] : none;
}

double number(const GraphNode& node, size_t i, double otherwise) {
  const GraphAttribute& found = argument(node, i);
  if (const auto* value = std::get_if<double>(&found)) return *value;
  if (const auto* value = std::get_if<int64_t>(&found)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<bool>(&found)) return *value ? 1 : 0;
  return otherwise;
}

int64_t integer(const GraphNode& node, size_t i, int64_t otherwise = 0) {
  const auto* value = std::get_if<int64_t>(&argument(node, i));
  return value != nullptr ? *value : otherwise;
}

Sizes64 integers(const GraphNode& node, size_t i) {
  const GraphAttribute& found = argument(node, i);
  if (const auto* all = std::get_if<Sizes64>(&found)) return *all;
  if (const auto* one = std::get_if<int64_t>(&found)) return {*one};
  return {};
}

// A tensor or a number, in a dtype.
MlirValue operand(Lowering& lowering, const GraphNode& node, size_t i, at::ScalarType dtype) {
  MlirBuilder& b = lowering.builder();
  if (const auto* ref = std::get_if<ValueRef>(&argument(node, i)))
    return b.convert(lowering.value(ref->id), dtype);
  return b.scalar(number(node, i, 0), dtype);
}

MlirValue tensor(Lowering& lowering, const GraphNode& node, size_t i) {
  const auto* ref = std::get_if<ValueRef>(&argument(node, i));
  TESSERA_CHECK(ref != nullptr, "{}: argument {} is no tensor", node.name, i);
  return lowering.value(ref->id);
}

const TensorShape& result_type(Lowering& lowering, const GraphNode& node) {
  return lowering.type_of(node.writes.front());
}

// The dtype in which libtorch computes what it then rounds to `dtype`.
at::ScalarType computing(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

// The dimension `dim`, counted from the end if negative.
int64_t dimension(int64_t dim, int64_t dims) {
  return dim < 0 ? dim + dims : dim;
}

// Sets the result to a value that is broadcast to its shape.
void finish(Lowering& lowering, const GraphNode& node, const MlirValue& value) {
  lowering.write(node, 0, lowering.builder().broadcast(value, result_type(lowering, node).sizes));
}

void copy(Lowering& lowering, const GraphNode& node) {
  finish(lowering, node, tensor(lowering, node, 0));
}
void copy_in_shape(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0,
                 lowering.builder().reshape(tensor(lowering, node, 0), result_type(lowering, node).sizes));
}
void copy_second(Lowering& lowering, const GraphNode& node) {
  finish(lowering, node, tensor(lowering, node, 1));
}

void arithmetic(Lowering& lowering, const GraphNode& node) {
  const at::ScalarType dtype = computing(result_type(lowering, node).dtype);
  std::string_view name = std::string_view(node.name).substr(6);
  while (name.ends_with('_')) name.remove_suffix(1);
  const std::string_view form = name == "add"   ? "add"
                                : name == "mul" ? "multiply"
                                : name == "div" ? "divide"
                                                : "subtract";
  MlirValue a = operand(lowering, node, 0, dtype), c = operand(lowering, node, 1, dtype);
  MlirBuilder& b = lowering.builder();
  const double factor = form == "add" || form == "subtract" ? number(node, 2, 1) : 1;  // `alpha`
  if (factor != 1) c = b.binary("multiply", c, factor);
  if (name == "rsub") std::swap(a, c);
  finish(lowering, node, b.binary(form, a, c));
}

template <const char* const* kForm>
void elementwise(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const at::ScalarType dtype = computing(result_type(lowering, node).dtype);
  lowering.write(node, 0, b.unary(*kForm, b.convert(tensor(lowering, node, 0), dtype)));
}
constexpr const char *kCosine = "cosine", *kSine = "sine", *kExponential = "exponential", *kSqrt = "sqrt",
                     *kRsqrt = "rsqrt", *kNegate = "negate", *kLogistic = "logistic", *kTanh = "tanh",
                     *kAbs = "abs";

void square(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = operand(lowering, node, 0, computing(result_type(lowering, node).dtype));
  lowering.write(node, 0, b.binary("multiply", x, x));
}

void reciprocal(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = operand(lowering, node, 0, computing(result_type(lowering, node).dtype));
  lowering.write(node, 0, b.binary("divide", b.filled(1, x.type), x));
}

void silu(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = operand(lowering, node, 0, computing(result_type(lowering, node).dtype));
  lowering.write(node, 0, b.binary("multiply", x, b.unary("logistic", x)));
}

// Sums and means over dimensions: (self, dim, keepdim, dtype), or (self, dtype) over all.
void reduction(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = operand(lowering, node, 0, computing(result_type(lowering, node).dtype));
  Sizes64 dims = integers(node, 1);
  for (int64_t& dim : dims) dim = dimension(dim, x.dims());
  if (node.arguments.size() < 3 || dims.empty()) {
    dims.clear();
    for (int64_t i = 0; i < x.dims(); ++i) dims.push_back(i);
  }
  MlirValue y = b.reduce("add", x, dims);
  if (node.name == "aten::mean") {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= x.size(dim);
    y = b.binary("divide", y, static_cast<double>(count));
  }
  lowering.write(node, 0, b.reshape(y, result_type(lowering, node).sizes));
}

std::vector<MlirValue> list(Lowering& lowering, const GraphNode& node, size_t i) {
  const auto* refs = std::get_if<std::vector<ValueRef>>(&argument(node, i));
  TESSERA_CHECK(refs != nullptr, "{}: argument {} is no list", node.name, i);
  std::vector<MlirValue> all;
  for (const ValueRef& each : *refs)
    all.push_back(lowering.builder().convert(lowering.value(each.id), result_type(lowering, node).dtype));
  return all;
}

void concat(Lowering& lowering, const GraphNode& node) {
  std::vector<MlirValue> parts = list(lowering, node, 0);
  const auto dims = std::ssize(result_type(lowering, node).sizes);
  std::erase_if(parts,
                [&](const MlirValue& part) { return part.dims() != dims; });  // [0], which counts as absent
  lowering.write(node, 0, lowering.builder().concat(parts, dimension(integer(node, 1), dims)));
}

void stack(Lowering& lowering, const GraphNode& node) {
  std::vector<MlirValue> parts = list(lowering, node, 0);
  const int64_t dim = dimension(integer(node, 1), parts.front().dims() + 1);
  for (MlirValue& part : parts) {
    Sizes64 sizes = part.sizes();
    sizes.insert(sizes.begin() + dim, 1);
    part = lowering.builder().reshape(part, sizes);
  }
  lowering.write(node, 0, lowering.builder().concat(parts, dim));
}

void zeros(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, lowering.builder().filled(0, result_type(lowering, node)));
}
void ones(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, lowering.builder().filled(1, result_type(lowering, node)));
}
void full(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, lowering.builder().filled(number(node, 1, 0), result_type(lowering, node)));
}

// (end), (start, end) or (start, end, step), and four options
void arange(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const TensorShape& type = result_type(lowering, node);
  const size_t numbers = node.arguments.size() - 4;
  const double start = numbers > 1 ? number(node, 0, 0) : 0, step = numbers > 2 ? number(node, 2, 1) : 1;
  const MlirValue scaled = b.binary("multiply", b.iota(type, 0), step);
  lowering.write(node, 0, b.binary("add", scaled, start));
}

// (self, repeats)
void repeat(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  MlirValue x = tensor(lowering, node, 0);
  const Sizes64 times = integers(node, 1);
  Sizes64 sizes = x.sizes();
  sizes.insert(sizes.begin(), times.size() - sizes.size(), 1);
  x = b.reshape(x, sizes);
  for (size_t i = 0; i < times.size(); ++i)
    x = b.concat(std::vector<MlirValue>(static_cast<size_t>(times[i]), x), static_cast<int64_t>(i));
  lowering.write(node, 0, x);
}

// (self, repeats, dim): repeats each element
void repeat_interleave(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = tensor(lowering, node, 0);
  const int64_t dim = dimension(integer(node, 2), x.dims()), times = integer(node, 1);
  Sizes64 sizes = x.sizes(), dims;
  sizes.insert(sizes.begin() + dim + 1, times);
  for (int64_t i = 0; i < x.dims(); ++i) dims.push_back(i <= dim ? i : i + 1);
  lowering.write(node, 0, b.reshape(b.broadcast(x, sizes, dims), result_type(lowering, node).sizes));
}

// (self, dim, index)
void index_select(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = tensor(lowering, node, 0), index = tensor(lowering, node, 2);
  const int64_t dim = dimension(integer(node, 1), x.dims());
  const TensorShape& result = result_type(lowering, node);
  Sizes64 sizes = x.sizes(), offsets;
  sizes[static_cast<size_t>(dim)] = 1;
  for (int64_t i = 0; i < x.dims(); ++i) {
    if (i != dim) offsets.push_back(i);
  }
  const MlirValue chosen = b.gather(x, index, dim, offsets, sizes, result);
  lowering.write(node, 0, chosen);
}

// (self, indices): along the first dimension, by a tensor of any shape
void index(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = tensor(lowering, node, 0);
  const auto* refs = std::get_if<std::vector<ValueRef>>(&argument(node, 1));
  TESSERA_CHECK(refs != nullptr && refs->size() == 1, "an index of several dimensions");
  const MlirValue places = lowering.value(refs->front().id);
  int64_t count = 1;
  for (const int64_t size : places.sizes()) count *= size;
  Sizes64 sizes = x.sizes(), offsets, rows = x.sizes();
  sizes[0] = 1;
  rows[0] = count;
  for (int64_t i = 1; i < x.dims(); ++i) offsets.push_back(i);
  const MlirValue chosen = b.gather(x, b.reshape(places, {count}), 0, offsets, sizes, {rows, x.type.dtype});
  lowering.write(node, 0, b.reshape(chosen, result_type(lowering, node).sizes));
}

// (self, value)
void fill(Lowering& lowering, const GraphNode& node) {
  const TensorShape& type = result_type(lowering, node);
  lowering.write(node, 0, lowering.builder().broadcast(operand(lowering, node, 1, type.dtype), type.sizes));
}

void compared(Lowering& lowering, const GraphNode& node) {
  const MlirValue x = tensor(lowering, node, 0);
  const char* const direction = node.name == "aten::lt" ? "LT" : "EQ";
  lowering.write(node, 0, lowering.builder().compare(direction, x, operand(lowering, node, 1, x.type.dtype)));
}

// (self, dim, keepdim) along one dimension: the first of the largest
void argmax(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = tensor(lowering, node, 0);
  TESSERA_CHECK(x.dims() == 1, "argmax of {} dimensions", x.dims());
  const MlirValue is_most = b.compare("EQ", x, b.reduce_keeping("maximum", x, {0}));
  const TensorShape places{x.sizes(), at::kLong};
  const MlirValue first = b.reduce(
      "minimum", b.select(is_most, b.iota(places, 0), b.filled(static_cast<double>(x.size(0)), places)), {0});
  lowering.write(node, 0, b.reshape(first, result_type(lowering, node).sizes));
}

// (self, pad, value): pairs starting from the last dimension
void constant_pad(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  MlirValue x = tensor(lowering, node, 0);
  const Sizes64 pads = integers(node, 1);
  Sizes64 low(x.sizes().size()), high(x.sizes().size());
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    low[low.size() - 1 - i] = pads[2 * i];
    high[high.size() - 1 - i] = pads[2 * i + 1];
  }
  TESSERA_CHECK(number(node, 2, 0) == 0, "padding with other than zeros");
  lowering.write(node, 0, b.pad(x, low, high));
}

// (self, output size, ...)
void upsample_nearest2d(Lowering& lowering, const GraphNode& node) {
  const MlirValue x = tensor(lowering, node, 0);
  const Sizes64& sizes = result_type(lowering, node).sizes;
  TESSERA_CHECK(sizes[2] == 2 * x.size(2) && sizes[3] == 2 * x.size(3), "an image that is not doubled");
  lowering.write(node, 0, doubled_image(lowering.builder(), x));
}

// (condition, self, other)
void where(Lowering& lowering, const GraphNode& node) {
  const at::ScalarType dtype = result_type(lowering, node).dtype;
  finish(lowering, node,
         lowering.builder().select(tensor(lowering, node, 0), operand(lowering, node, 1, dtype),
                                   operand(lowering, node, 2, dtype)));
}

// (self, tensor1, tensor2, value)
void addcmul(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const at::ScalarType dtype = computing(result_type(lowering, node).dtype);
  const MlirValue product =
      b.binary("multiply", operand(lowering, node, 1, dtype), operand(lowering, node, 2, dtype));
  finish(
      lowering, node,
      b.binary("add", operand(lowering, node, 0, dtype), b.binary("multiply", product, number(node, 3, 1))));
}

}  // namespace

const LoweringRules& libtorch_rules() {
  static const LoweringRules rules = {{"aten::to", copy},
                                      {"aten::_to_copy", copy},
                                      {"aten::contiguous", copy},
                                      {"aten::clone", copy},
                                      {"aten::reshape", copy_in_shape},
                                      {"aten::flatten", copy_in_shape},
                                      {"aten::copy_", copy_second},
                                      {"aten::add", arithmetic},
                                      {"aten::add_", arithmetic},
                                      {"aten::sub", arithmetic},
                                      {"aten::rsub", arithmetic},
                                      {"aten::sub_", arithmetic},
                                      {"aten::mul", arithmetic},
                                      {"aten::mul_", arithmetic},
                                      {"aten::div", arithmetic},
                                      {"aten::div_", arithmetic},
                                      {"aten::cos", elementwise<&kCosine>},
                                      {"aten::sin", elementwise<&kSine>},
                                      {"aten::exp", elementwise<&kExponential>},
                                      {"aten::sqrt", elementwise<&kSqrt>},
                                      {"aten::rsqrt", elementwise<&kRsqrt>},
                                      {"aten::neg", elementwise<&kNegate>},
                                      {"aten::sigmoid", elementwise<&kLogistic>},
                                      {"aten::tanh", elementwise<&kTanh>},
                                      {"aten::abs", elementwise<&kAbs>},
                                      {"aten::square", square},
                                      {"aten::reciprocal", reciprocal},
                                      {"aten::silu", silu},
                                      {"aten::sum", reduction},
                                      {"aten::mean", reduction},
                                      {"aten::cat", concat},
                                      {"aten::concat", concat},
                                      {"aten::stack", stack},
                                      {"aten::zeros", zeros},
                                      {"aten::zeros_like", zeros},
                                      {"aten::zero_", zeros},
                                      {"aten::ones", ones},
                                      {"aten::full", full},
                                      {"aten::arange", arange},
                                      {"aten::repeat", repeat},
                                      {"aten::repeat_interleave", repeat_interleave},
                                      {"aten::index_select", index_select},
                                      {"aten::index", index},
                                      {"aten::fill_", fill},
                                      {"aten::eq", compared},
                                      {"aten::lt", compared},
                                      {"aten::argmax", argmax},
                                      {"aten::constant_pad_nd", constant_pad},
                                      {"aten::where", where},
                                      {"aten::upsample_nearest2d", upsample_nearest2d},
                                      {"aten::addcmul", addcmul},
                                      {"aten::addcmul_", addcmul}};
  return rules;
}

}  // namespace tessera::plan
