// Traces with their costs on a machine, and the tables of them that `tessera analyze hardware` and `tessera
// analyze report` print.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/table.h"
#include "plan/hardware/trace_analysis.h"
#include "plan/run_costs.h"

namespace tessera::plan {

struct CostedTrace {
  std::string name;  // the file
  const Trace* trace = nullptr;
  int64_t steps = 1;                      // of the run
  std::shared_ptr<OperationCosts> costs;  // null without a machine
  std::optional<Link> link;               // empty if no bandwidth is known
  std::optional<RunCosts> run;  // empty without a machine, or if ranks or the link that they need are missing
  std::vector<std::string> obstacles;  // operators that fit with no split; times do not include them

  // The time of the run, if all of it is known.
  std::optional<double> seconds() const;
  // The rank of the trace that computes longest.
  const RankTrace& busiest() const;
};

CostedTrace cost_trace(std::string name, const Trace& trace, int64_t steps,
                       std::shared_ptr<OperationCosts> costs, std::optional<Link> link);

// A row for each trace, in order: the time of the run and of a steady step, what the rank that computes
// longest does during it, and the most that a rank sends and holds.
Table comparison_table(const std::vector<CostedTrace>& traces);

// For a trace with a run: its parts, and its ranks.
Table parts_table(const CostedTrace& costed);
Table ranks_table(const CostedTrace& costed);

// The time of a steady step on the rank that computes longest, divided by the bounds of its operators and the
// causes of its waiting, longest first.
std::vector<std::pair<std::string, double>> bounds_of(const CostedTrace& costed);

}  // namespace tessera::plan
