// What this machine's processor can do, and how much of that is used.
//
// TESSERA_MAX_ISA=avx2|avx512|avx512_bf16 in the environment keeps everything, libraries included,
// to that instruction set, so that any machine can test and time what older processors run. It has no effect
// on processors that are not x86, nor where it names more than there is.
#pragma once

namespace tessera {

// Instruction sets of x86 for which kernels are written; each holds those before it.
enum class Isa {
  kBaseline,    // SSE2, what every x86-64 has; everything that is not x86
  kAvx2,        // with FMA and F16C (x86-64-v3)
  kAvx512,      // F, BW, CD, DQ, VL (x86-64-v4)
  kAvx512Bf16,  // products of bf16
  kAmx,         // tiles for bf16
};

// What kernels may use: the processor's, capped. Throws Error (usage) where TESSERA_MAX_ISA has no such
// value.
Isa cpu_isa();

// True when it multiplies bf16 in hardware (AVX512-BF16 or AMX on x86, BF16 on Arm).
bool cpu_has_bf16();

// Hands TESSERA_MAX_ISA on to ATen, oneDNN and MKL, in their own variables, over what these hold; without it
// they are left alone. For the first line of main(), as libraries look once, at their first use, and threads
// may read the environment. Throws Error (usage) as cpu_isa() does.
void cap_libraries();

}  // namespace tessera
