// How often a loop of a program in StableHLO runs.
#pragma once

#include <cstdint>

#include "plan/stablehlo_reader.h"

namespace tessera::plan {

// Of a while that counts from a constant to a constant below which its condition holds, in steps of a
// constant, as scans and loops of JAX do. Throws Error(kInput) that names the line of any other.
int64_t trips_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& loop);

}  // namespace tessera::plan
