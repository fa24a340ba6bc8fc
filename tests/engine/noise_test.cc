#include "engine/noise.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace tessera::engine {
namespace {

// Two consecutive draws have the bits of torch.randn with a seeded torch.Generator.
TEST(Noise, EqualsTorchBitForBit) {
  const std::map<std::string, at::Tensor> golden = read_golden("noise/noise.safetensors");
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 40}) {
    Noise noise({{seed, 2}});
    for (const char* draw : {"first", "second"}) {
      const at::Tensor& expected = golden.at(fmt::format("{}.{}", seed, draw));
      EXPECT_TRUE(noise.draw(expected.sizes()).equal(expected)) << seed << ' ' << draw;
    }
  }
}

// In a batch each request's noise is the same as alone.
TEST(Noise, OfARequestIsTheSameInCompany) {
  Noise together({{3, 2}, {4, 1}}), first({{3, 2}}), second({{4, 1}});
  for (int draw = 0; draw < 2; ++draw)
    EXPECT_TRUE(together.draw({3, 4, 5}).equal(at::concat({first.draw({2, 4, 5}), second.draw({1, 4, 5})})));
}

// The draws of a group are its part of those of all, whichever group draws first.
TEST(Noise, OfAGroupIsItsPartOfAll) {
  const Noise start({{3, 2}, {4, 3}, {5, 1}});
  const Range groups[] = {{0, 1}, {1, 2}, {3, 3}};
  for (const Range& own : groups) {
    Noise all = start.of({0, 6}), part = start.of(own);
    for (int draw = 0; draw < 2; ++draw) {
      const at::Tensor expected = all.draw({6, 4, 5}).narrow(0, own.begin, own.length);
      EXPECT_TRUE(part.draw({own.length, 4, 5}).equal(expected)) << own.begin << ", draw " << draw;
    }
  }
}

}  // namespace
}  // namespace tessera::engine
