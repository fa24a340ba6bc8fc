#include "kernels/kernel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

namespace tessera::kernels {
namespace {

TESSERA_INLINE void exp_all(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = exp_approximate(x[i]);
}

TESSERA_INLINE void round_all(const float* x, Bf16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(y + i, x[i]);
}

TESSERA_INLINE void widen_all(const Bf16* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = load(x[i]);
}

TESSERA_INLINE void round_halves(const float* x, Fp16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(y + i, x[i]);
}

TESSERA_INLINE void widen_halves(const Fp16* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = load(x[i]);
}

TEST(ExpApproximate, IsWithinTwoUlpOverTheWholeRange) {
  const at::Tensor x = at::linspace(-87.3, 88.7, 2'000'003, at::kFloat);
  at::Tensor y = at::empty_like(x);
  run_kernel<exp_all>(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel());
  double worst = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double truth = std::exp(static_cast<double>(x.const_data_ptr<float>()[i]));
    const float nearest = static_cast<float>(truth);
    const double ulp = std::nextafterf(nearest, std::numeric_limits<float>::infinity()) - nearest;
    worst = std::max(worst, std::abs(y.const_data_ptr<float>()[i] - truth) / ulp);
  }
  EXPECT_LT(worst, 2.0);
}

TEST(ExpApproximate, TheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0F, -0.0F, 89.0F, kInfinity, -kInfinity, -1000.0F, 1000.0F, NAN, -100.0F};
  std::vector<float> y(x.size());
  run_kernel<exp_all>(x.data(), y.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], kInfinity);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_EQ(y[4], 0.0F);
  EXPECT_EQ(y[5], 0.0F);
  EXPECT_EQ(y[6], kInfinity);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_NEAR(y[8], std::exp(-100.0), 1.5e-45);  // a subnormal number
}

TEST(Silu, LimitsAreThoseOfTheFunction) {
  EXPECT_EQ(silu(-1000.0F), 0.0F);
  EXPECT_EQ(silu(1000.0F), 1000.0F);
  EXPECT_EQ(silu(0.0F), 0.0F);
  EXPECT_EQ(sigmoid(1000.0F), 1.0F);
  EXPECT_FLOAT_EQ(silu(1.0F), 0.731058579F);
}

TEST(Bf16, RoundsAsAtenDoes) {
  // Every upper half occurs with lower halves on both sides of a tie, which covers all rounding cases,
  // infinities and NaN.
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  const at::Tensor x = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
  at::Tensor rounded = at::empty_like(x, at::kBFloat16);
  run_kernel<round_all>(values.data(), static_cast<Bf16*>(rounded.mutable_data_ptr()), x.numel());
  EXPECT_TRUE(
      at::allclose(rounded.to(at::kFloat), x.to(at::kBFloat16).to(at::kFloat), 0, 0, /*equal_nan=*/true));

  at::Tensor widened = at::empty_like(x);
  run_kernel<widen_all>(static_cast<const Bf16*>(rounded.const_data_ptr()), widened.mutable_data_ptr<float>(),
                        x.numel());
  EXPECT_TRUE(at::allclose(widened, rounded.to(at::kFloat), 0, 0, /*equal_nan=*/true));
}

TEST(Fp16, RoundsAsAtenDoes) {
  // These are all halves, numbers on both sides of every tie between them, and numbers beyond the largest and
  // next to zero.
  const at::Tensor bits = at::arange(0x10000, at::kInt).to(at::kShort);
  const at::Tensor halves = bits.view(at::kHalf);
  at::Tensor wide = at::empty(halves.sizes(), at::kFloat);
  run_kernel<widen_halves>(static_cast<const Fp16*>(halves.const_data_ptr()), wide.mutable_data_ptr<float>(),
                           wide.numel());
  EXPECT_TRUE(at::allclose(wide, halves.to(at::kFloat), 0, 0, /*equal_nan=*/true));

  const at::Tensor finite = wide.masked_select(at::isfinite(wide)), next = std::get<0>(finite.sort());
  const at::Tensor ties = (next.slice(0, 1) + next.slice(0, 0, -1)) / 2;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::concat({wide, ties, at::nextafter(ties, at::full_like(ties, kInfinity)),
                                   at::nextafter(ties, at::full_like(ties, -kInfinity)),
                                   at::tensor({65519.0F, 65520.0F, 1e9F, -1e9F, 1e-30F, -1e-30F})});
  at::Tensor rounded = at::empty_like(x, at::kHalf);
  run_kernel<round_halves>(x.const_data_ptr<float>(), static_cast<Fp16*>(rounded.mutable_data_ptr()),
                           x.numel());
  EXPECT_TRUE(at::allclose(rounded.to(at::kFloat), x.to(at::kHalf).to(at::kFloat), 0, 0, /*equal_nan=*/true));
}

#ifdef _OPENMP
// ATen's parallel_for is in a header and is silently serial in sources that are built without OpenMP.
TEST(ParallelFor, UsesTheThreadsThatItIsGiven) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::set<std::thread::id> seen;
  std::mutex mutex;
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  at::set_num_threads(threads);
  EXPECT_EQ(seen.size(), 2u);
}
#elif !defined(__clang__)  // clang-tidy compiles this without OpenMP
#error "the tests are built without OpenMP: the library would be serial"
#endif

}  // namespace
}  // namespace tessera::kernels
