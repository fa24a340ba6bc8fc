#include "core/cpu.h"

#include <cpuinfo.h>

namespace tessera {

bool cpu_has_bf16() {
  static const bool has = cpuinfo_initialize() && (cpuinfo_has_x86_avx512bf16() || cpuinfo_has_arm_bf16());
  return has;
}

bool cpu_has_amx_bf16() {
  static const bool has = cpuinfo_initialize() && cpuinfo_has_x86_amx_bf16();
  return has;
}

bool cpu_has_avx512() {
  static const bool has = cpuinfo_initialize() && cpuinfo_has_x86_avx512f() && cpuinfo_has_x86_avx512bw() &&
                          cpuinfo_has_x86_avx512vl() && cpuinfo_has_x86_avx512dq();
  return has;
}

}  // namespace tessera
