// The tables of `tessera analyze hardware`, but for those of whole runs (plan/costed_trace.h).
#pragma once

#include "core/table.h"
#include "plan/hardware/analysis.h"
#include "plan/hardware/trace_analysis.h"

namespace tessera::plan {

// A row for each operator of a list.
Table operators_table(const Analysis& analysis);
// A row for each operator of a rank, with all that is known of it, for programs.
Table operators_table(const TraceAnalysis& analysis);
// The same for people: the `top` that take longest, all of them for 0, and what is beyond them in one row.
Table longest_table(const TraceAnalysis& analysis, size_t top);
// What the rank sends.
Table collectives_table(const TraceAnalysis& analysis);
// Times by role, the longest first; what has no role stands under its own name.
Table roles_table(const TraceAnalysis& analysis);

}  // namespace tessera::plan
