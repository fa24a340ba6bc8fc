#include "plan/stablehlo_costs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "plan/mlir_text.h"
#include "plan/saturating.h"

namespace tessera::plan {
namespace {

constexpr std::array<std::string_view, 7> kElementwise = {"add",   "subtract", "multiply",   "divide",
                                                          "rsqrt", "negate",   "exponential"};

const TensorShape& shape(const StablehloModule& module, const ProgramFunction& function,
                         const ProgramOperation& operation, const std::vector<size_t>& values, size_t i) {
  if (i >= values.size() || !function.values[values[i]])
    module.fail(operation, fmt::format("{} has too few tensors", operation.name));
  return *function.values[values[i]];
}

// The contracted dimensions of the left factor, in the short form or the generic one.
std::vector<int64_t> left_dims(const ProgramOperation& operation, std::string_view name,
                               std::string_view generic) {
  const std::string_view pair = attribute_of(operation, name);
  return numbers_in(pair.empty() ? attribute_of(operation, generic) : pair);
}

int64_t convolution_flops(const StablehloModule& module, const ProgramFunction& function,
                          const ProgramOperation& operation) {
  const TensorShape& weight = shape(module, function, operation, operation.reads, 1);
  // "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
  constexpr std::string_view kBetween = "]x[";
  const std::string_view words = operation.words;
  const size_t begin = words.find(kBetween);
  const std::string_view dims =
      begin == std::string_view::npos
          ? ""
          : words.substr(begin + kBetween.size(), words.find(']', begin + 1) - begin);
  const auto features = static_cast<size_t>(std::count(
      dims.begin(), dims.begin() + static_cast<ptrdiff_t>(std::min(dims.find('o'), dims.size())), ','));
  if (dims.find('o') == std::string_view::npos || features >= weight.sizes.size())
    module.fail(operation, "the dimensions of a convolution are not those of its weights");
  std::vector<int64_t> taps = weight.sizes;
  taps.erase(taps.begin() + static_cast<ptrdiff_t>(features));
  const TensorShape& result = shape(module, function, operation, operation.writes, 0);
  return product(product(2, elements_of(result.sizes)), elements_of(taps));
}

}  // namespace

std::string_view attribute_of(const ProgramOperation& operation, std::string_view name) {
  const std::string_view words = operation.words;
  for (size_t at = words.find(name); at != std::string_view::npos; at = words.find(name, at + 1)) {
    size_t behind = at + name.size();
    while (behind < words.size() && words[behind] == ' ') ++behind;
    const bool is_begun = at == 0 || !is_mlir_word(words[at - 1]);
    if (is_begun && behind < words.size() && words[behind] == '=') return words.substr(behind + 1);
  }
  return {};
}

std::vector<int64_t> numbers_in(std::string_view text) {
  std::vector<int64_t> numbers;
  int64_t depth = 0;
  for (size_t i = text.find('['); i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && --depth == 0) break;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), number);
    if (error != std::errc()) continue;
    numbers.push_back(number);
    i = static_cast<size_t>(end - text.data()) - 1;
  }
  return numbers;
}

std::vector<TensorShape> shapes_of(const ProgramFunction& function, const std::vector<size_t>& values) {
  std::vector<TensorShape> shapes;
  for (const size_t value : values) {
    if (function.values[value]) shapes.push_back(*function.values[value]);
  }
  return shapes;
}

int64_t bytes_of(const std::vector<TensorShape>& shapes) {
  int64_t bytes = 0;
  for (const TensorShape& each : shapes) bytes = sum(bytes, each.bytes());
  return bytes;
}

int64_t elements_of(const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes) elements = product(elements, size);
  return elements;
}

bool is_dot(const ProgramOperation& operation) {
  return operation.name == "dot_general" || operation.name == "dot";
}

DotSizes dot_sizes(const StablehloModule& module, const ProgramFunction& function,
                   const ProgramOperation& operation) {
  const TensorShape& left = shape(module, function, operation, operation.reads, 0);
  const TensorShape& right = shape(module, function, operation, operation.reads, 1);
  const bool is_plain = operation.name == "dot";
  const std::vector<int64_t> batch = left_dims(operation, "batching_dims", "lhs_batching_dimensions");
  const std::vector<int64_t> summed =
      is_plain ? std::vector<int64_t>{std::ssize(left.sizes) - 1}
               : left_dims(operation, "contracting_dims", "lhs_contracting_dimensions");
  DotSizes sizes;
  sizes.m = sizes.k = 1;
  if (!batch.empty()) sizes.batch = 1;
  std::set<int64_t> seen;
  const auto times = [&](int64_t& all, int64_t dim) {
    if (dim < 0 || dim >= std::ssize(left.sizes) || !seen.insert(dim).second)
      module.fail(operation, "the dimensions of a product are not those of its factors");
    all = product(all, left.sizes[static_cast<size_t>(dim)]);
  };
  for (const int64_t dim : batch) times(*sizes.batch, dim);
  for (const int64_t dim : summed) times(sizes.k, dim);
  for (int64_t dim = 0; dim < std::ssize(left.sizes); ++dim) {
    if (!seen.contains(dim)) times(sizes.m, dim);
  }
  const int64_t shared = product(sizes.batch.value_or(1), sizes.k);
  sizes.n = shared == 0 ? 0 : elements_of(right.sizes) / shared;
  return sizes;
}

int64_t flops_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& operation) {
  if (is_dot(operation)) {
    const TensorShape& result = shape(module, function, operation, operation.writes, 0);
    return product(product(2, elements_of(result.sizes)), dot_sizes(module, function, operation).k);
  }
  if (operation.name == "convolution") return convolution_flops(module, function, operation);
  if (std::find(kElementwise.begin(), kElementwise.end(), operation.name) == kElementwise.end()) return 0;
  int64_t elements = 0;
  for (const TensorShape& each : shapes_of(function, operation.writes))
    elements = sum(elements, elements_of(each.sizes));
  return elements;
}

}  // namespace tessera::plan
