// Common parts of the project's CPU kernels: code for several instruction sets in one binary, conversions of
// 16-bit floats, and an exponential that the compiler can vectorise.
//
// A kernel is a plain loop over a range in a function marked TESSERA_INLINE; at::parallel_for runs it on each
// part by run_kernel<function>(arguments). Lambdas do not inherit the instruction set, so loops must not be
// in lambdas. Helpers are marked TESSERA_INLINE too, so that they are compiled for the kernel that uses them.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host.h"

// x86-64-v3 and -v4 as lists of features, because a function with another `arch` could not inline functions
// that lack it.
#if defined(__x86_64__)
#define TESSERA_TARGET_AVX2 \
  __attribute__((target("avx,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt,sse4.2,xsave,cx16,sahf")))
#define TESSERA_TARGET_AVX512                                                                \
  __attribute__((                                                                            \
      target("avx,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt,sse4.2,xsave,cx16,sahf,avx512f," \
             "avx512bw,avx512cd,avx512dq,avx512vl")))
#else
#define TESSERA_TARGET_AVX2
#define TESSERA_TARGET_AVX512
#endif

// Marks a loop whose iterations are independent although its pointers may be equal (in-place kernels).
#if defined(__GNUC__) && !defined(__clang__)
#define TESSERA_INDEPENDENT _Pragma("GCC ivdep")
#else
#define TESSERA_INDEPENDENT
#endif

#define TESSERA_INLINE inline __attribute__((always_inline))

namespace tessera::kernels {

// The code of one kernel for each instruction set, and the choice for this process.
template <auto kKernel, typename Function = decltype(kKernel)>
struct KernelCode;
template <auto kKernel, typename... Args>
struct KernelCode<kKernel, void (*)(Args...)> {
  TESSERA_TARGET_AVX512 static void avx512(Args... args) { kKernel(args...); }
  TESSERA_TARGET_AVX2 static void avx2(Args... args) { kKernel(args...); }
  static void baseline(Args... args) { kKernel(args...); }

  static auto chosen() {
    static const auto code = cpu_isa() >= Isa::kAvx512 ? &avx512
                             : cpu_isa() >= Isa::kAvx2 ? &avx2
                                                       : &baseline;
    return code;
  }
};

template <auto kKernel, typename... Args>
void run_kernel(const Args&... args) {
  KernelCode<kKernel>::chosen()(args...);
}

// The bits of a bfloat16; data_ptr() of an at::kBFloat16 tensor points to these.
using Bf16 = uint16_t;
// The bits of an IEEE half; data_ptr() of an at::kHalf tensor points to these.
struct Fp16 {
  uint16_t bits;
};

TESSERA_INLINE float load(float value) {
  return value;
}
TESSERA_INLINE float load(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

TESSERA_INLINE void store(float* to, float value) {
  *to = value;
}
// Rounds to nearest, ties to even. NaN stays NaN.
TESSERA_INLINE void store(Bf16* to, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  *to = static_cast<Bf16>(value != value ? 0x7fc0U : rounded);
}

// The product with 2^112 turns subnormal numbers into normal ones. Infinity and NaN get fp32's exponent for
// them.
TESSERA_INLINE float load(Fp16 value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) | (magnitude >= 0x0f800000U ? 0x7f800000U : 0U);
  return std::bit_cast<float>(bits | static_cast<uint32_t>(value.bits & 0x8000U) << 16);
}
// Rounds to nearest, ties to even. NaN stays NaN.
TESSERA_INLINE void store(Fp16* to, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffU;
  // Halves below 2^-14 are multiples of 2^-24; adding 1/2 rounds to these.
  const float sum = std::bit_cast<float>(magnitude) + 0.5F;
  const uint32_t subnormal = std::bit_cast<uint32_t>(sum) - 0x3f000000U;
  const uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const uint32_t rounded = magnitude >= 0x47800000U ? special : magnitude < 0x38800000U ? subnormal : normal;
  to->bits = static_cast<uint16_t>(rounded | bits >> 31 << 15);
}

template <typename T>
TESSERA_INLINE void widen(const T* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = load(from[i]);
}

// e^x with an error below 2 units in the last place. Beyond fp32's range it gives 0 or infinity; NaN stays
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a minimax fit of e^r.
TESSERA_INLINE float exp_approximate(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = x > 89.0F ? 89.0F : x;
  x = x < -104.0F ? -104.0F : x;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r =
      (x - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts; the first product is exact
  float p = 0.001381454F;
  p = p * r + 0.008368745F;
  p = p * r + 0.04166839F;
  p = p * r + 0.16666521F;
  p = p * r + 0.49999994F;
  p = p * (r * r) + r + 1.0F;
  // Splits 2^n into two factors, so that results near the ends of the range stay correct.
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(exponent) >> 1);
  const float first = std::bit_cast<float>((half + 127U) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127U) << 23);
  return p * first * second;
}

TESSERA_INLINE float sigmoid(float x) {
  return 1.0F / (1.0F + exp_approximate(-x));
}
// x sigmoid(y)
TESSERA_INLINE float silu_of(float x, float y) {
  return x / (1.0F + exp_approximate(-y));
}
TESSERA_INLINE float silu(float x) {
  return silu_of(x, x);
}

}  // namespace tessera::kernels
