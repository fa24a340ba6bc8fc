// Runs that `tessera generate --record` wrote, in the form that a machine is fitted to (plan/planner/fit.h).
#pragma once

#include <string>
#include <vector>

#include "plan/hardware/operation_costs.h"
#include "plan/planner/fit.h"
#include "plan/trace.h"

namespace tessera::plan {

// What a record's machine must have in common with those of other records of the same fit.
struct RecordedOn {
  std::string dtype;    // "bf16"
  int64_t threads = 1;  // of each rank
};

// Throws Error(kInput) that names `where` for a trace from shapes, one that lacks ranks, and one of a program
// too old to write what this needs.
RecordedOn recorded_on(const Trace& trace, const std::string& where);

// Its denoising and, if it has one, its decoding. Each takes the time of the slowest rank, from the beginning
// of its first event to the end of its last, by its own clock. Encoding is left out, because a run reads the
// weights of text encoders during it. `where` is for names and errors.
std::vector<MeasuredRun> measured_phases(const Trace& trace, OperationCosts& costs, const std::string& where);

}  // namespace tessera::plan
