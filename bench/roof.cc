#include "bench/roof.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string_view>

#include "core/host.h"
#include "kernels/kernel.h"
#include "kernels/tile_gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {
namespace {

#if defined(__x86_64__)

// As many sums as registers allow, so that no instruction waits for the result of an earlier one.
constexpr int kSums = 12, kWideSums = 24;

// Each kernel does its FLOP so many times.
struct Kernel {
  void (*run)(int64_t times);
  double flop;
};

TESSERA_TARGET_AVX2 void avx2(int64_t times) {
  __m256 sums[kSums] = {};                                // NOLINT: an array of vectors
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));  // they may not be taken for equal
  __m256 a = _mm256_set1_ps(0.5F);
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+x"(a));  // the products may not be computed once for all
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, a, sum);
  }
  for (__m256& sum : sums) asm volatile("" : : "x"(sum));
}

TESSERA_TARGET_AVX512 void avx512(int64_t times) {
  __m512 sums[kWideSums] = {};                            // NOLINT: an array of vectors
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));  // they may not be taken for equal
  __m512 a = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, a, sum);
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
}

__attribute__((target("avx512f,avx512bf16"))) void avx512_bf16(int64_t times) {
  __m512 sums[kWideSums] = {};  // NOLINT: an array of vectors
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.5F));
  for (int64_t i = 0; i < times; ++i) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, a);
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
}

// Six tiles of sums, which is all that two tiles of operands leave.
void amx(int64_t times) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0;
    std::array<uint8_t, 14> reserved = {};
    std::array<uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
    std::array<uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
  } const config;
  asm volatile("ldtilecfg %0" : : "m"(config));  // all tiles are zero then
  for (int64_t i = 0; i < times; ++i) {
    asm volatile(
        "tdpbf16ps %tmm7, %tmm6, %tmm0\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm1\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm2\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm3\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm4\n"
        "tdpbf16ps %tmm7, %tmm6, %tmm5");
  }
  asm volatile("tilerelease");
}

Kernel kernel_for(bool bf16) {
  const Isa isa = cpu_isa();
  if (bf16 && isa >= Isa::kAmx && kernels::tile_gemm_runs()) return {amx, 6 * 2.0 * 16 * 16 * 32};
  if (bf16 && isa >= Isa::kAvx512Bf16) return {avx512_bf16, kWideSums * 2.0 * 32};
  if (isa >= Isa::kAvx512) return {avx512, kWideSums * 2.0 * 16};
  if (isa >= Isa::kAvx2) return {avx2, kSums * 2.0 * 8};
  return {nullptr, 0};
}

double flop_per_second(bool bf16) {
  const Kernel kernel = kernel_for(bf16);
  if (kernel.run == nullptr) return 0;
  constexpr int64_t kTimes = 1'000'000;
  constexpr int kRounds = 20;  // the fastest counts; the first ones raise the clock
  double best = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    kernel.run(kTimes);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, kernel.flop * static_cast<double>(kTimes) / seconds);
  }
  return best;
}

#else

double flop_per_second(bool /*bf16*/) {
  return 0;
}

#endif

}  // namespace

int run_roof(int argc, char** argv) {
  if (argc != 1) {
    std::cerr << "usage: tessera_bench roof fp32|bf16\n";
    return 2;
  }
  std::cout << flop_per_second(std::string_view(argv[0]) == "bf16") << std::endl;
  return 0;
}

}  // namespace tessera
