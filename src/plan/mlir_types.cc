#include "plan/mlir_types.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 52;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 19> kElements = {{
    {"f32", at::kFloat},
    {"bf16", at::kBFloat16},
    {"f16", at::kHalf},
    {"f64", at::kDouble},
    {"i1", at::kBool},
    {"i8", at::kChar},
    {"i16", at::kShort},
    {"i32", at::kInt},
    {"i64", at::kLong},
    {"ui8", at::kByte},
    {"ui16", at::kUInt16},
    {"ui32", at::kUInt32},
    {"ui64", at::kUInt64},
    {"f8E4M3FN", at::kFloat8_e4m3fn},
    {"f8E5M2", at::kFloat8_e5m2},
    {"f8E4M3FNUZ", at::kFloat8_e4m3fnuz},
    {"f8E5M2FNUZ", at::kFloat8_e5m2fnuz},
    {"complex<f32>", at::kComplexFloat},
    {"complex<f64>", at::kComplexDouble},
}};

}  // namespace

MlirType MlirTypeReader::type() {
  if (text_.accept("!")) {
    text_.word();
    if (text_.next() == '<') text_.group();
    return std::nullopt;
  }
  const std::string_view word = text_.word();
  if (word == "tensor" && text_.next() == '<') return tensor();
  if (word.empty()) text_.fail("a type is missing");
  if (text_.next() == '<') text_.group();
  return std::nullopt;
}

MlirTypes MlirTypeReader::list() {
  MlirTypes types;
  const bool has_brackets = text_.accept("(");
  if (has_brackets && text_.accept(")")) return types;
  do {
    types.push_back(type());
  } while (text_.accept(","));
  if (has_brackets) text_.expect(")");
  return types;
}

TensorShape MlirTypeReader::tensor() {
  text_.step();
  const size_t place = text_.place();
  TensorShape shape;
  int64_t elements = 1;
  while (text_.next() >= '0' && text_.next() <= '9') {
    int64_t size = 0;
    for (; text_.next() >= '0' && text_.next() <= '9'; text_.step()) {
      size = 10 * size + (text_.next() - '0');
      if (size > kMostElements) text_.fail("a dimension of more than 2^52");
    }
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMostElements)
      text_.fail_at(place, "a tensor of more than 2^52 elements");
    shape.sizes.push_back(size);
    if (text_.next() != 'x') text_.fail("a type is damaged");
    text_.step();
  }
  if (text_.next() == '?' || text_.next() == '*')
    text_.fail("a shape that is not known; programs of static shapes are read here");
  shape.dtype = element();
  if (text_.accept(",")) {  // an encoding
    while (!text_.is_at_end() && text_.next() != '>') {
      text_.next() == '<' ? static_cast<void>(text_.group()) : text_.step();
    }
  }
  text_.expect(">");
  return shape;
}

at::ScalarType MlirTypeReader::element() {
  const size_t begin = text_.place();
  text_.word();
  if (text_.next() == '<') text_.group();
  const std::string_view name = text_.since(begin);
  const auto found =
      std::find_if(kElements.begin(), kElements.end(), [&](const auto& each) { return each.first == name; });
  if (found == kElements.end())
    text_.fail_at(begin, fmt::format("'{}' is no type of numbers that is read here", name));
  return found->second;
}

}  // namespace tessera::plan
