#include "core/cpu.h"

#include <cpuinfo.h>

namespace tessera {

bool cpu_has_bf16() {
  static const bool has = cpuinfo_initialize() && (cpuinfo_has_x86_avx512bf16() || cpuinfo_has_arm_bf16());
  return has;
}

}  // namespace tessera
