#include "ops/linear.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/tensor_heap.h"
#include "tests/support/checkpoint_fixture.h"

namespace tessera::ops {
namespace {

constexpr int64_t kWide = 640;  // weights of so many numbers in a row and column are large tensors of a heap

struct Case {
  at::ScalarType dtype;
  std::vector<int64_t> input;
  int64_t out;
};

class LinearTest : public ::testing::TestWithParam<Case> {};

TEST_P(LinearTest, EqualsTheProductWithActivations) {
  const Case& c = GetParam();
  const int64_t in = c.input.back();
  at::Tensor weight = at::randn({c.out, in}).div_(std::sqrt(static_cast<double>(in))).to(c.dtype);
  at::Tensor bias = at::randn({c.out}).to(c.dtype);
  const at::Tensor x = at::randn(c.input).to(c.dtype);
  const Linear linear(weight, bias);
  const at::Tensor plain = at::linear(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
  const double tolerance = c.dtype == at::kFloat ? 1e-5 : 1e-2;
  const std::vector<std::pair<Activation, at::Tensor>> expected = {
      {Activation::kNone, plain},
      {Activation::kGelu, at::gelu(plain)},
      {Activation::kGeluTanh, at::gelu(plain, "tanh")},
      {Activation::kRelu, at::relu(plain)},
      {Activation::kSilu, at::silu(plain)}};
  for (const auto& [activation, reference] : expected) {
    const at::Tensor y = linear(x, activation);
    EXPECT_EQ(y.scalar_type(), c.dtype);
    EXPECT_EQ(y.sizes(), reference.sizes());
    EXPECT_LE((y.to(at::kDouble) - reference).abs().max().item<double>(),
              tolerance * reference.abs().max().item<double>())
        << static_cast<int>(activation);
  }
}

// A result is rounded once, with the activation, or twice where the activation is an operation of its own.
TEST_P(LinearTest, OfWeightsAsStored) {
  const Case& c = GetParam();
  const double in = static_cast<double>(c.input.back());
  const at::Tensor weight = at::randn({c.out, c.input.back()}).div_(std::sqrt(in)).to(c.dtype),
                   bias = at::randn({c.out}).to(c.dtype), x = at::randn(c.input).to(c.dtype);
  for (const at::Tensor& shift : {bias, at::Tensor()}) {
    const Linear linear(weight, shift, Packing::kAsStored);
    EXPECT_TRUE(linear.weight.is_same(weight));
    at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    if (shift.defined()) expected += shift.to(at::kDouble);
    const double unit = c.dtype == at::kFloat ? 1e-6 : c.dtype == at::kHalf ? 0x1.2p-10 : 0x1.2p-7;
    for (const auto& [activation, reference] :
         {std::pair(Activation::kNone, expected), std::pair(Activation::kSilu, at::silu(expected))}) {
      const at::Tensor y = linear(x, activation);
      EXPECT_EQ(y.scalar_type(), c.dtype);
      EXPECT_TRUE(((y.to(at::kDouble) - reference).abs() <= unit * expected.abs() + 1e-5).all().item<bool>())
          << static_cast<int>(activation);
    }
  }
}

// Where there are few rows, threads share the columns, which need not divide by them.
TEST_P(LinearTest, ThreadsDoNotChangeTheResult) {
  const Case& c = GetParam();
  const at::Tensor weight = at::randn({c.out, c.input.back()}).to(c.dtype),
                   bias = at::randn({c.out}).to(c.dtype);
  const at::Tensor x = at::randn(c.input).to(c.dtype);
  const Linear linear(weight, bias);
  const at::Tensor one = linear(x).to(at::kDouble);
  for (const int threads : {2, 3, 5}) {
    at::set_num_threads(threads);
    const at::Tensor several = linear(x).to(at::kDouble);
    at::set_num_threads(1);
    EXPECT_LE((several - one).abs().max().item<double>(),
              (c.dtype == at::kFloat ? 1e-5 : 1e-2) * one.abs().max().item<double>())
        << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearTest,
    ::testing::Values(Case{at::kFloat, {3, 5, 7}, 11}, Case{at::kFloat, {1, 64}, 48},
                      Case{at::kFloat, {2, 100, 96}, 1}, Case{at::kBFloat16, {3, 5, 7}, 11},
                      Case{at::kBFloat16, {2, 130, 96}, 160}, Case{at::kHalf, {2, 9, 32}, 24},
                      Case{at::kHalf, {1, 125, 900}, 33}, Case{at::kHalf, {1, 1, 64}, 115},
                      Case{at::kFloat, {2, 200, 800}, 37}, Case{at::kFloat, {1, 1, 385}, 100},
                      Case{at::kBFloat16, {7, 130}, 50},
                      // tiles: several blocks of rows, batches of panels, chunks and runs of inputs
                      Case{at::kBFloat16, {2, 450, 1000}, 300}, Case{at::kBFloat16, {1, 1, 640}, 1280},
                      Case{at::kBFloat16, {3, 77, 4500}, 600}));

TEST(Linear, JoinsLayersWithOneInput) {
  const at::Tensor q = at::randn({4, 6}), k = at::randn({4, 6});
  CheckpointFixture fixture({{"q.weight", q}, {"k.weight", k}});
  const Range outputs{.begin = 1, .length = 2};
  const Linear joined =
      read_linear({{fixture.scope() / "q", 4, outputs}, {fixture.scope() / "k", 4, outputs}}, 6,
                  {{.length = 6}}, {.bias = false});
  const at::Tensor x = at::randn({3, 6});
  const at::Tensor expected =
      at::concat({at::linear(x, q.narrow(0, 1, 2)), at::linear(x, k.narrow(0, 1, 2))}, 1);
  EXPECT_TRUE(at::allclose(joined(x), expected, 1e-5, 1e-5));
}

// Whether the weights of blocks lie in a heap without gaps between them, which joint weights would leave if
// what they are made of lay below them.
bool lie_together(const weights::Scope& scope) {
  constexpr uint8_t kHighest = 255;
  constexpr size_t kAll = size_t{1} << 30;
  TensorHeap heap(kAll);
  c10::SetCPUAllocator(&heap, kHighest);
  const auto next_place = [&] { return reinterpret_cast<uintptr_t>(heap.allocate(kAll / 2).get()); };
  const uintptr_t begin = next_place();
  std::vector<Linear> layers;
  for (int block = 0; block < 4; ++block) {
    for (const std::vector<const char*>& names :
         {std::vector<const char*>{"q", "k", "v"}, {"out"}, {"q"}, {"k", "v"}, {"out"}}) {
      std::vector<LayerPart> parts;
      for (const char* const name : names) parts.push_back({scope / name, kWide, {.length = kWide}});
      layers.push_back(read_linear(parts, kWide, {{.length = kWide}}, {.bias = false}));
    }
  }
  return next_place() - begin <= heap.used() + heap.used() / 100;
}

TEST(Linear, WeightsOfBlocksLieTogether) {
  const at::Tensor weight = at::ones({kWide, kWide});
  CheckpointFixture fixture(
      {{"q.weight", weight}, {"k.weight", weight}, {"v.weight", weight}, {"out.weight", weight}});
  // Ends at once, because the heap does not outlive its tensors.
  EXPECT_EXIT(std::_Exit(lie_together(fixture.scope()) ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera::ops
