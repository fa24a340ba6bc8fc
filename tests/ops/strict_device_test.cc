// Tests operations on a device other than the CPU: they equal the CPU's but for rounding, and take as few
// kernels and as little memory as documented.
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/group_norm.h"
#include "ops/modulate.h"
#include "tests/support/golden.h"
#include "tests/support/strict_device.h"

namespace tessera::ops {
namespace {

int64_t operations_of(const std::function<void()>& work) {
  const int64_t before = strict_traffic().operations;
  work();
  return strict_traffic().operations - before;
}

TEST(OperationsOnAStrictDevice, AttentionInPartsKeepsNoScores) {
  constexpr int64_t kQueries = 500, kKeys = 700, kHeads = 4;
  for (const auto& [depth, key_heads] : {std::pair<int64_t, int64_t>(8, 4), {7, 4}, {8, 2}}) {
    for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 1e-5), {at::kBFloat16, 1e-2}}) {
      const auto draw = [&, dtype = dtype](int64_t tokens, int64_t width) {
        return at::randn({2, tokens, width}).to(dtype);
      };
      const at::Tensor q = draw(kQueries, kHeads * depth), k = draw(kKeys, key_heads * depth),
                       v = draw(kKeys, key_heads * depth);
      const at::Tensor expected = attention(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), kHeads);
      const auto there = [](const at::Tensor& x) { return x.to(strict_device()); };
      const at::Tensor q_there = there(q), k_there = there(k), v_there = there(v);
      StrictTraffic& traffic = strict_traffic();
      const int64_t before = traffic.most_bytes = traffic.bytes.load();
      PartialAttention parts(q_there, kHeads);
      for (const auto& [begin, end] : {std::pair(400, 700), {0, 0}, {0, 123}, {123, 400}})
        parts.add(k_there.narrow(1, begin, end - begin), v_there.narrow(1, begin, end - begin));
      const at::Tensor result = parts.result();
      const int64_t scores = int64_t{4} * 2 * kHeads * kQueries * 123;  // bytes, of the smallest part
      EXPECT_LT(traffic.most_bytes - before, scores);
      EXPECT_EQ(result.scalar_type(), dtype);
      EXPECT_LE(relative_error(result.cpu().to(at::kFloat), expected), tolerance)
          << depth << " " << key_heads;
    }
  }
}

TEST(OperationsOnAStrictDevice, ModulationIsOneKernelOrTwo) {
  for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 2e-6), {at::kBFloat16, 1.6e-2}}) {
    const at::Tensor x = (at::randn({2, 12, 64}) * 3 + 1).to(dtype), y = at::randn({2, 12, 64}).to(dtype);
    const at::Tensor x_there = x.to(strict_device()), y_there = y.to(strict_device());
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{64}, {2, 64}, {2, 3, 64}}) {
      const at::Tensor scale = at::randn(shape), shift = at::randn(shape);
      const at::Tensor scale_there = scale.to(strict_device()), shift_there = shift.to(strict_device());
      at::Tensor normed, gated = x.clone(), gated_there = x_there.clone();
      // Besides the kernels over x there are 1 + scale and, if the norm takes them, the conversion of both
      // vectors to its dtype.
      const int64_t of_vectors = 1 + (shape.size() == 1 && dtype != at::kFloat ? 2 : 0);
      EXPECT_EQ(
          operations_of([&] { normed = modulated_layer_norm(x_there, scale_there, shift_there, 1e-6); }),
          (shape.size() == 1 ? 1 : 2) + of_vectors);
      EXPECT_EQ(operations_of([&] { add_gated_(gated_there, y_there, scale_there); }), 1);
      add_gated_(gated, y, scale);
      EXPECT_EQ(normed.scalar_type(), dtype);
      EXPECT_LE(relative_error(normed.cpu().to(at::kFloat),
                               modulated_layer_norm(x, scale, shift, 1e-6).to(at::kFloat)),
                tolerance)
          << shape.size();
      EXPECT_LE(relative_error(gated_there.cpu().to(at::kFloat), gated.to(at::kFloat)), tolerance)
          << shape.size();
    }
  }
}

// Convolutions read channels-last, whatever memory format the norm's kernel returns.
TEST(OperationsOnAStrictDevice, GroupNormKeepsTheMemoryFormat) {
  const at::Tensor x = at::randn({2, 8, 5, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor weight = at::randn({8}), bias = at::randn({8});
  const GroupNorm norm(weight, bias, 4, 1e-6, Activation::kSilu),
      there(weight.to(strict_device()), bias.to(strict_device()), 4, 1e-6, Activation::kSilu);
  const at::Tensor x_there = x.to(strict_device());
  const at::Tensor y = there(x_there), in_steps = there.apply(there.maps(there.moments(x_there)), x_there);
  for (const at::Tensor& each : {y, in_steps}) {
    EXPECT_TRUE(each.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_LE(relative_error(each.cpu(), norm(x)), 1e-5);
  }
}

// The result is written once, without a copy into another tensor.
TEST(OperationsOnAStrictDevice, AttentionIsNotCopied) {
  const at::Tensor q = at::randn({1, 9, 32}, at::TensorOptions().device(strict_device()));
  at::Tensor plain, own;
  const auto split = [](const at::Tensor& x) { return x.unflatten(2, {4, 8}).transpose(1, 2); };
  const int64_t operations = operations_of([&] {
    plain = at::scaled_dot_product_attention(split(q), split(q), split(q)).transpose(1, 2).flatten(2);
  });
  EXPECT_EQ(operations_of([&] { own = attention(q, q, q, 4); }), operations);
  EXPECT_TRUE(at::equal(own.cpu(), plain.cpu()));
}

}  // namespace
}  // namespace tessera::ops
