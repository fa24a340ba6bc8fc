#include "ops/attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tessera::ops {
namespace {

// Computes attention by its definition in double precision.
at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads) {
  const auto split = [&](const at::Tensor& x) {
    return x.to(at::kDouble).unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
  };
  const int64_t depth = q.size(2) / heads;
  const at::Tensor scores =
      at::matmul(split(q), split(k).transpose(2, 3)) / std::sqrt(static_cast<double>(depth));
  return at::matmul(at::softmax(scores, -1), split(v)).transpose(1, 2).flatten(2);
}

double error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

struct Case {
  int64_t batch, queries, keys, heads, depth;
};

at::Tensor draw(const Case& c, int64_t tokens, at::ScalarType dtype) {
  return at::randn({c.batch, tokens, c.heads * c.depth}).to(dtype);
}

class AttentionTest : public ::testing::TestWithParam<std::tuple<Case, at::ScalarType>> {};

TEST_P(AttentionTest, EqualsTheDefinition) {
  const auto& [c, dtype] = GetParam();
  const at::Tensor q = draw(c, c.queries, dtype) * 2, k = draw(c, c.keys, dtype) * 2,
                   v = draw(c, c.keys, dtype);
  const at::Tensor expected = reference(q, k, v, c.heads);
  const at::Tensor out = attention(q, k, v, c.heads);
  EXPECT_EQ(out.scalar_type(), dtype);
  // In bf16 and fp16 the result and the probabilities are rounded.
  const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
  EXPECT_LE(error(out, expected), tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    ::testing::Combine(::testing::Values(Case{1, 1, 1, 1, 1}, Case{2, 64, 64, 2, 72}, Case{1, 65, 513, 3, 16},
                                         Case{1, 63, 1300, 1, 64}, Case{2, 100, 20, 2, 9},
                                         Case{1, 7, 1024, 5, 33}, Case{3, 130, 1, 2, 24},
                                         Case{1, 200, 511, 1, 128}, Case{1, 33, 70, 1, 512}),
                       ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf)));

TEST_P(AttentionTest, TakesKeysInParts) {
  const auto& [c, dtype] = GetParam();
  const at::Tensor q = draw(c, c.queries, dtype) * 2, k = draw(c, c.keys, dtype) * 2,
                   v = draw(c, c.keys, dtype);
  const at::Tensor expected = reference(q, k, v, c.heads);
  const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
  for (const int64_t parts : {1, 2, 5}) {
    PartialAttention attention(q, c.heads);
    for (int64_t part = parts; part-- > 0;) {  // some are empty, and the last comes first
      const int64_t begin = c.keys * part / parts, end = c.keys * (part + 1) / parts;
      attention.add(k.narrow(1, begin, end - begin), v.narrow(1, begin, end - begin));
    }
    const at::Tensor out = attention.result();
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_LE(error(out, expected), tolerance) << parts << " parts";
  }
}

// Keys come in parts, and some parts come again; the others stay unchanged.
TEST_P(AttentionTest, KeepsKeysFromCallToCall) {
  const Case c = std::get<0>(GetParam());  // no structured binding: lambdas below use it
  const at::ScalarType dtype = std::get<1>(GetParam());
  const at::Tensor q = draw(c, c.queries, dtype) * 2;
  at::Tensor k = draw(c, c.keys, dtype) * 2, v = draw(c, c.keys, dtype);
  const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
  KvCache kept(c.batch, c.keys, c.heads, c.depth, q.options());
  const auto check = [&](int64_t count) {
    at::Tensor out = at::empty_like(q);
    kept.attend(out, q, count);
    const at::Tensor expected = reference(q, k.narrow(1, 0, count), v.narrow(1, 0, count), c.heads);
    EXPECT_LE(error(out, expected), tolerance) << count << " of " << c.keys << " keys";
  };
  const auto write = [&](int64_t begin, int64_t end) {
    kept.write(begin, k.narrow(1, begin, end - begin), v.narrow(1, begin, end - begin));
  };
  for (int64_t part = 0; part < 3; ++part) {
    const int64_t end = c.keys * (part + 1) / 3;
    write(c.keys * part / 3, end);
    if (end > 0) check(end);
  }
  const int64_t begin = c.keys / 4, end = (c.keys + 1) / 2;
  k.narrow(1, begin, end - begin).copy_(draw(c, end - begin, dtype));
  v.narrow(1, begin, end - begin).copy_(draw(c, end - begin, dtype));
  write(begin, end);
  check(c.keys);
}

// Two or three heads of queries share one of keys, and the result is as if each had a copy: at once, in
// parts, and with kept keys.
TEST(Attention, GroupedQueriesShareTheirKeys) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t sharing : {2, 3}) {
      constexpr int64_t kKeyHeads = 2, kDepth = 24, kKeys = 150;
      const int64_t heads = kKeyHeads * sharing;
      const at::Tensor q = at::randn({2, 70, heads * kDepth}).to(dtype);
      const at::Tensor k = at::randn({2, kKeys, kKeyHeads * kDepth}).to(dtype), v = at::randn_like(k);
      const auto for_each_head = [&](const at::Tensor& x) {
        return x.unflatten(2, {kKeyHeads, kDepth}).repeat_interleave(sharing, 2).flatten(2);
      };
      const at::Tensor expected = reference(q, for_each_head(k), for_each_head(v), heads);
      const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
      EXPECT_LE(error(attention(q, k, v, heads), expected), tolerance);

      PartialAttention parts(q, heads);
      parts.add(k.narrow(1, 90, 60), v.narrow(1, 90, 60));
      parts.add(k.narrow(1, 0, 90), v.narrow(1, 0, 90));
      EXPECT_LE(error(parts.result(), expected), tolerance);

      KvCache kept(2, kKeys, kKeyHeads, kDepth, q.options());
      kept.write(0, k, v);
      const at::Tensor out = at::empty_like(q);
      kept.attend(out, q, kKeys);
      EXPECT_LE(error(out, expected), tolerance);
    }
  }
}

TEST(Attention, TakesStridedParts) {
  const at::Tensor fused = at::randn({2, 90, 120});
  const auto parts = fused.chunk(3, 2);
  EXPECT_LE(error(attention(parts[0], parts[1], parts[2], 5), reference(parts[0], parts[1], parts[2], 5)),
            3e-6);
}

TEST(Attention, SurvivesExtremeScores) {
  const at::Tensor q = at::randn({1, 70, 16}) * 100, k = at::randn({1, 600, 16}) * 100,
                   v = at::randn({1, 600, 16});
  const at::Tensor out = attention(q, k, v, 1);
  EXPECT_TRUE(at::isfinite(out).all().item<bool>());
  // A score is exact to half a unit in its last place; the exponential makes that a relative error.
  const double largest = at::matmul(q, k.transpose(1, 2)).abs().max().item<double>() / 4;
  EXPECT_LE(error(out, reference(q, k, v, 1)), largest * 0x1p-23);
}

// Scores that differ by much more than the exponential's range select the largest: no rounding of theirs may
// reach the exponential. The keys of the second block of keys are larger, so that sums are rescaled.
TEST(Attention, HugeScoresSelectTheLargest) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor k = at::randn({1, 1100, 16}), v = at::randn({1, 1100, 16}).to(dtype);
    k.narrow(1, 600, 500) *= 2;
    k = k.to(dtype);
    for (const double scale : dtype == at::kHalf ? std::vector{1e4} : std::vector{1e9, 1e18, 1e30}) {
      const at::Tensor q = (at::randn({1, 70, 16}) * scale).to(dtype);
      PartialAttention in_parts(q, 1);
      for (const auto& [begin, length] : {std::pair{0, 100}, {100, 600}, {700, 400}})
        in_parts.add(k.narrow(1, begin, length), v.narrow(1, begin, length));
      const at::Tensor expected = reference(q, k, v, 1);
      EXPECT_LE(error(attention(q, k, v, 1), expected), 1e-2) << dtype << " " << scale;
      EXPECT_LE(error(in_parts.result(), expected), 1e-2) << dtype << " " << scale;
    }
  }
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor q = at::randn({1, 300, 64}), k = at::randn({1, 300, 64}), v = at::randn({1, 300, 64});
  const auto in_parts = [&] {
    PartialAttention partial(q, 2);
    for (const auto& [begin, length] : {std::pair{0, 100}, {100, 200}})
      partial.add(k.narrow(1, begin, length), v.narrow(1, begin, length));
    return partial.result();
  };
  const at::Tensor one = attention(q, k, v, 2), parts_of_one = in_parts();
  at::set_num_threads(3);
  const at::Tensor three = attention(q, k, v, 2), parts_of_three = in_parts();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(one, three));
  EXPECT_TRUE(at::equal(parts_of_one, parts_of_three));
}

}  // namespace
}  // namespace tessera::ops
