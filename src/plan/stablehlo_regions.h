// Which regions of a program in StableHLO run, and how often.
#pragma once

#include <cstdint>

#include "plan/stablehlo_reader.h"

namespace tessera::plan {

// Of a while that counts from a constant to a constant below which its condition holds, in steps of a
// constant, as scans and loops of JAX do. Throws Error(kInput) that names the line of any other.
int64_t trips_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& loop);

// The branch of a case that a partition takes, where the partition's number chooses it, as in our programs
// (MlirBuilder::partition). Throws Error(kInput) that names the line of any other.
const ProgramBlock& branch_of(const StablehloModule& module, const ProgramFunction& function,
                              const ProgramOperation& choice, int64_t rank);

}  // namespace tessera::plan
