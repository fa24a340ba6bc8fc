// What this machine's processor can do.
#pragma once

namespace tessera {

// True when it multiplies bf16 in hardware (AVX512-BF16 or AMX on x86, BF16 on Arm).
bool cpu_has_bf16();

// True when it has AMX tiles for bf16.
bool cpu_has_amx_bf16();

// True when it has AVX-512 (F, BW, VL, DQ).
bool cpu_has_avx512();

}  // namespace tessera
