#include "plan/printed_flops.h"

#include <gtest/gtest.h>

#include <regex>

namespace tessera::plan {
namespace {

constexpr int64_t kRows = 6, kWidth = 10, kElements = kRows * kWidth;

OperationEvent operation(const std::string& name) {
  OperationEvent event;
  event.name = name;
  event.output.sizes = {2, kRows / 2, kWidth};
  return event;
}

// What the graphs write down for each element and for each row.
struct Formula {
  std::string name, of_element, of_row;
};

// The numbers that a formula's arithmetic writes; a minus sign without an operand before it is a negation.
int64_t written(const std::string& formula) {
  const std::regex one("[-+*/]|exp|rsqrt");
  return std::distance(std::sregex_iterator(formula.begin(), formula.end(), one), std::sregex_iterator());
}

TEST(PrintedFlops, CountTheNumbersThatArithmeticWrites) {
  for (const Formula& each :
       std::vector<Formula>{{"modulated_layer_norm", "d = x - mean, d * d, d * r * one_and_scale + shift",
                             "mean = sum / n, r = rsqrt(squares / n + epsilon)"},
                            {"group_norm", "d = x - mean, d * d, d * r * weight + bias", ""},
                            {"rms_norm", "x * x, x * r * weight", "r = rsqrt(squares / n + epsilon)"},
                            {"gated_add", "residual + gate * x", ""},
                            {"gelu_tanh", "0.5 * x * (1 + tanh(c * (x + d * x * x * x)))", ""},
                            {"gelu", "0.5 * x * (1 + erf(c * x))", ""},
                            {"gated_gelu", "0.5 * x * (1 + erf(c * x)) * gate", ""},
                            {"silu", "x / (1 + exp(-x))", ""},
                            {"quick_gelu", "x / (1 + exp(-c * x))", ""},
                            {"aten::add", "x + y", ""},
                            {"aten::add_", "x + y", ""},
                            {"aten::sub", "x - y", ""},
                            {"aten::mul", "x * y", ""},
                            {"aten::div", "x / y", ""},
                            {"aten::neg", "-x", ""},
                            {"aten::exp", "exp(x)", ""},
                            {"aten::rsqrt", "rsqrt(x)", ""},
                            {"aten::tanh", "", ""},
                            {"aten::sum", "", ""}}) {
    const PrintedFlops flops = printed_flops(operation(each.name), 1);
    EXPECT_EQ(flops.elementwise, kElements * written(each.of_element) + kRows * written(each.of_row))
        << each.name;
    EXPECT_EQ(flops.products, 0) << each.name;
  }
}

// A product counts as it is, and its bias once for each element; a convolution counts its bias alone.
TEST(PrintedFlops, OfProductsAndConvolutions) {
  for (const auto& [name, counts] : {std::pair("linear", true), {"conv2d", false}}) {
    for (const bool has_bias : {false, true}) {
      OperationEvent event = operation(name);
      event.flops = 123456;
      event.inputs.resize(has_bias ? 3 : 2);
      EXPECT_EQ(printed_flops(event, 1).products, counts ? event.flops : 0) << name;
      EXPECT_EQ(printed_flops(event, 1).elementwise, has_bias ? kElements : 0) << name;
    }
  }
}

}  // namespace
}  // namespace tessera::plan
