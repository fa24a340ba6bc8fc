// The tables of `tessera analyze hardware`, except those of whole runs (plan/costed_trace.h).
#pragma once

#include "core/table.h"
#include "plan/hardware/analysis.h"
#include "plan/hardware/trace_analysis.h"

namespace tessera::plan {

// A row for each operator of a list.
Table operators_table(const Analysis& analysis);
// A row for each operator of a rank, with everything known about it, for programs.
Table operators_table(const TraceAnalysis& analysis);
// The same for people: the `top` that take longest (0 for all), with the rest in one row.
Table longest_table(const TraceAnalysis& analysis, size_t top);
// What the rank sends.
Table collectives_table(const TraceAnalysis& analysis);
// Times by role, longest first; operations without a role are listed by name.
Table roles_table(const TraceAnalysis& analysis);

}  // namespace tessera::plan
