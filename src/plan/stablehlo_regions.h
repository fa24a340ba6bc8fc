// Which regions of a program in StableHLO run, and how often.
#pragma once

#include <cstdint>

#include "plan/stablehlo_reader.h"

namespace tessera::plan {

// The number of iterations of a while that counts from a constant up to a constant limit in constant steps,
// as scans and loops of JAX do. Throws Error(kInput) naming the line of any other while.
int64_t trips_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& loop);

// The branch of a case that a partition takes, if the partition's number selects it, as in our programs
// (MlirBuilder::partition). Throws Error(kInput) naming the line of any other case.
const ProgramBlock& branch_of(const StablehloModule& module, const ProgramFunction& function,
                              const ProgramOperation& choice, int64_t rank);

}  // namespace tessera::plan
