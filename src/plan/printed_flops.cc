#include "plan/printed_flops.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "plan/views.h"

namespace tessera::plan {
namespace {

int64_t elements_of(const TensorShape& shape) {
  return c10::multiply_integers(shape.sizes);
}

// What is counted for each element of the output, and for each row of it. Rotary positions are not among it:
// without them the published totals come out to their digits, with them 2 to 3 % higher.
struct Count {
  std::string_view name;
  double of_element = 0, of_row = 0;
};
constexpr std::array<Count, 16> kCounts = {{
    // x - mean, its square, times the reciprocal root, times 1 + scale, plus shift; two means, epsilon, root
    {"modulated_layer_norm", 5, 4},
    {"group_norm", 5, 0},
    // the square, times the reciprocal root, times the weight; the mean, epsilon, root
    {"rms_norm", 3, 3},
    {"gated_add", 2, 0},
    // 0.5 x (1 + tanh(c (x + d x x x)))
    {"gelu_tanh", 8, 0},
    {"gelu", 4, 0},
    {"gated_gelu", 5, 0},
    // x / (1 + exp(-c x))
    {"silu", 4, 0},
    {"quick_gelu", 5, 0},
    {"aten::add", 1, 0},
    {"aten::sub", 1, 0},
    {"aten::mul", 1, 0},
    {"aten::div", 1, 0},
    {"aten::neg", 1, 0},
    {"aten::exp", 1, 0},
    {"aten::rsqrt", 1, 0},
}};

int64_t count_of(const OperationEvent& operation) {
  std::string_view name = operation.name;
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto found =
      std::find_if(kCounts.begin(), kCounts.end(), [&](const Count& each) { return each.name == name; });
  if (found == kCounts.end() || operation.output.sizes.empty()) return 0;
  const auto elements = static_cast<double>(elements_of(operation.output));
  const auto width = static_cast<double>(std::max<int64_t>(operation.output.sizes.back(), 1));
  return static_cast<int64_t>(elements * found->of_element + elements / width * found->of_row);
}

// Queries are scaled; from each score the maximum of its row is subtracted, the exponential taken, and
// divided by the sum.
PrintedFlops attention(const OperationEvent& operation, int64_t texts) {
  const int64_t scale = elements_of(operation.output);
  const int64_t depth = operation.inputs.empty() || operation.inputs[0].sizes.empty()
                            ? 1
                            : std::max<int64_t>(operation.inputs[0].sizes.back(), 1);
  // Two products of as many FLOPs, 2 x depth for each score.
  const int64_t scores = operation.flops / (4 * depth);
  constexpr double kMost = 4e18;  // what a file says may be more than an integer holds
  const auto times = [&](int64_t count) {
    return static_cast<int64_t>(std::min(static_cast<double>(count) * static_cast<double>(texts), kMost));
  };
  return {times(operation.flops), times(3 * scores) + scale};
}

}  // namespace

PrintedFlops printed_flops(const OperationEvent& operation, int64_t texts) {
  if (is_attention(operation.name)) return attention(operation, texts);
  if (!is_product(operation.name)) return {0, count_of(operation)};
  const int64_t bias = operation.inputs.size() > 2 ? elements_of(operation.output) : 0;
  return {is_convolution(operation.name) ? 0 : operation.flops, bias};
}

}  // namespace tessera::plan
