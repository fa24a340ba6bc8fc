// The kernels to use on each kind of core: one row each, chosen by measurement. The figures are ratios of
// times, or rates, of two kernels that alternate in one process with one thread, in fp32 unless stated
// otherwise. GFLOP/s are for x [2048, K] -> N with (K, N) = (1152, 1152), (1152, 4608), (4608, 1152), without
// activation / with tanh GELU.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/host.h"

namespace tessera::kernels {

enum class LinearKernel {
  kAten,    // at::linear and a separate activation; on x86 that is MKL in fp32
  kOneDnn,  // weights in oneDNN's layout, with a fused activation
  kOwn,     // kernels/gemm.h: fp32 sums, weights in any dtype, with a fused activation
  kTiles,   // kernels/tile_gemm.h: bf16 by AMX, with a fused activation
  kNone,    // only the shape of the result, for meta tensors that stand for the CPU
};

struct Choices {
  LinearKernel linear;         // in fp32
  LinearKernel bf16_linear;    // in bf16 if the processor multiplies it
  LinearKernel narrow_linear;  // in a 16-bit dtype that the processor does not multiply
  bool own_attention;          // kernels/attention_kernels.h; else ATen's
  bool panels;         // products within the project's kernels: kernels/gemm.h; else oneDNN's, through ATen
  bool winograd;       // 3x3 convolutions and upsampling in fp32 by minimal filtering; else oneDNN's
  bool winograd_bf16;  // the same in bf16
};

// The rows follow the order of Isa.
//
// AVX2 (Zen 5 limited to AVX2): linear layers, own 107, 95, 106 / 105, 93, 107; at::linear 99, 93, 100 / 73
// to 80; oneDNN 108 / 84 (the second shape). On cores that have no more than AVX2, at::linear reaches 83-93 /
// 63-87 and oneDNN 68-78 / 48-54. Own with weights in bf16: 109, 103, 106. The shipped model's decoder at 256
// px in bf16 takes 1.05 of fp32's time by Winograd with fp32 tiles, and 6.6 by ATen. AVX-512: oneDNN 195 /
// 190, at::linear 95 / 80 (Zen 5, the second shape); own attention takes 0.90 of ATen's time, in bf16 0.53;
// with Winograd, SDXL's decoder at 256 px takes 0.85 of the processor time, in bf16 0.91. AMX: own attention
// takes 0.97, in bf16 0.93; bf16 products are so fast there that Winograd's transforms cost more than they
// save. Tiles over oneDNN's products in bf16: a step of SDXL's U-Net at 1024 px takes 0.973 [0.948 .. 1.007]
// of the time, of PixArt-Sigma-XL at 512 px 0.957 [0.925 .. 0.965]; x [2048, 1152] -> 1152 alone is slower,
// 0.85.
//
// Not measured yet: Winograd in narrow bf16 on AVX-512, and own products of 16-bit weights there.
using enum LinearKernel;
constexpr Choices kChoices[] = {
    /* baseline */ {kOneDnn, kOneDnn, kAten, false, false, false, false},
    /* avx2     */ {kOwn, kOneDnn, kOwn, true, true, true, false},
    /* avx512   */ {kOneDnn, kOneDnn, kOwn, true, false, true, false},
    /* ... bf16 */ {kOneDnn, kOneDnn, kOwn, true, false, true, true},
    /* amx      */ {kOneDnn, kTiles, kOwn, true, false, true, false},
};

inline const Choices& choices() {
  return kChoices[static_cast<int>(cpu_isa())];
}

// Whether the processor multiplies this dtype. Weights in other ("narrow") dtypes are stored unchanged and
// widened to fp32 for products.
inline bool is_multiplied(at::ScalarType dtype) {
  return dtype == at::kFloat || (dtype == at::kBFloat16 && cpu_has_bf16());
}

}  // namespace tessera::kernels
