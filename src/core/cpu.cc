#include "core/cpu.h"

#include <ATen/Functions.h>
#include <cpuinfo.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "core/error.h"

namespace tessera {
namespace {

// An instruction set and its name in each library's environment variable.
struct Cap {
  Isa isa;
  const char *name, *aten, *onednn, *mkl;
};

// MKL follows its variable on Intel's processors; on AMD's it uses at most AVX2 in any case (seen with MKL
// 2024.2 on Zen 5). There is no cap below AVX2, because oneDNN 3.12's SSE4.1 convolutions crash with a
// segmentation fault.
constexpr Cap kCaps[] = {
    {Isa::kAvx2, "avx2", "avx2", "AVX2", "AVX2"},
    {Isa::kAvx512, "avx512", "avx512", "AVX512_CORE", "AVX512"},
    {Isa::kAvx512Bf16, "avx512_bf16", "avx512", "AVX512_CORE_BF16", "AVX512"},
};

// Returns nullptr if no cap is set.
const Cap* wanted_cap() {
  const char* const value = std::getenv("TESSERA_MAX_ISA");
  if (!value) return nullptr;
  for (const Cap& cap : kCaps) {
    if (std::string_view(value) == cap.name) return &cap;
  }
  usage_error("TESSERA_MAX_ISA", "expected avx2, avx512 or avx512_bf16, got '{}'", value);
}

Isa processor_isa() {
  if (!cpuinfo_initialize() || !cpuinfo_has_x86_avx2() || !cpuinfo_has_x86_fma3() || !cpuinfo_has_x86_f16c())
    return Isa::kBaseline;
  if (!cpuinfo_has_x86_avx512f() || !cpuinfo_has_x86_avx512bw() || !cpuinfo_has_x86_avx512cd() ||
      !cpuinfo_has_x86_avx512dq() || !cpuinfo_has_x86_avx512vl())
    return Isa::kAvx2;
  if (!cpuinfo_has_x86_avx512bf16()) return Isa::kAvx512;
  return cpuinfo_has_x86_amx_bf16() ? Isa::kAmx : Isa::kAvx512Bf16;
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = [] {
    const Cap* const cap = wanted_cap();
    return cap ? std::min(cap->isa, processor_isa()) : processor_isa();
  }();
  return isa;
}

bool cpu_has_bf16() {
  static const bool arm = cpuinfo_initialize() && cpuinfo_has_arm_bf16();
  return arm || cpu_isa() >= Isa::kAvx512Bf16;
}

void cap_libraries() {
  const Cap* const cap = wanted_cap();
  // ATen does not check that the processor has what its variable names; it would crash with an illegal
  // instruction.
  if (!cap || cap->isa >= processor_isa()) return;
  setenv("ATEN_CPU_CAPABILITY", cap->aten, 1);
  setenv("ONEDNN_MAX_CPU_ISA", cap->onednn, 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", cap->mkl, 1);
}

void make_first_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, dtype);
      for (const auto function :
           {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log, at::log10,
            at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc})
        function(x);
    }
  });
}

}  // namespace tessera
