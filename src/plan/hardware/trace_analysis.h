// The operators of a rank of a trace on a machine, with equal ones in one row, and what the rank sends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/hardware/operation_costs.h"
#include "plan/trace.h"

namespace tessera::plan {

struct TracedOperator {
  Phase phase = Phase::kDenoise;
  std::string name, role;  // of the operation; the role with numbers replaced by *
  std::vector<TensorShape> inputs;
  TensorShape output;
  // For a single such operation. An operation that becomes several operators counts as the first of them.
  int64_t flops = 0, bytes = 0;
  const MappedWork* mapped = nullptr;  // owned by the costs
  int64_t count = 0, step_count = 0;   // in the whole run, and in one steady step

  double seconds() const {
    return mapped->mapping.latency * static_cast<double>(count);
  }  // 0 if nothing fits
  double step_seconds() const { return mapped->mapping.latency * static_cast<double>(step_count); }
};

struct TracedCollective {
  Phase phase = Phase::kDenoise;
  std::string axis, name;
  int64_t count = 0, step_count = 0;  // in the whole run, and in one steady step
  double bytes = 0, step_bytes = 0;   // of all of them, sent or received, whichever is larger
  double seconds = 0;                 // in the run, if nothing hid them and no rank were waited for
};

struct TraceAnalysis {
  std::vector<TracedOperator> operators;      // in the order in which they first run
  std::vector<TracedCollective> collectives;  // likewise

  double computing(Phase phase) const;  // seconds of the whole run
};

// The operators, on any rank, for which no split fits: the name and role of each, once.
std::vector<std::string> obstacles_of(const Trace& trace, OperationCosts& costs);

// Whether the rank exchanges anything.
bool has_collectives(const RankTrace& rank);

// Analyzes a run of `steps` steps. A collective takes the link's latency plus the time of its bytes; `link`
// must have a bandwidth if the rank has collectives. The result refers to `costs`.
TraceAnalysis analyze_trace(const Trace& trace, const RankTrace& rank, int64_t steps, OperationCosts& costs,
                            const std::optional<Link>& link);

}  // namespace tessera::plan
