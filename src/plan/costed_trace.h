// Traces with their costs on a machine, and the tables of these that `tessera analyze hardware` and `tessera
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
  std::optional<Link> link;               // empty where no bandwidth is known
  std::optional<RunCosts> run;  // empty without a machine, or where ranks or the link they need are missing
  std::vector<std::string> obstacles;  // operators of which no split fits; times are without them

  // The time of the run, if all of it is known.
  std::optional<double> seconds() const;
  // The rank of the trace that computes longest.
  const RankTrace& busiest() const;
};

CostedTrace cost_trace(std::string name, const Trace& trace, int64_t steps,
                       std::shared_ptr<OperationCosts> costs, std::optional<Link> link);

// A row for each trace, in their order: the time of the run and of a steady step, what the rank that computes
// longest does meanwhile, and what a rank sends and holds at most.
Table comparison_table(const std::vector<CostedTrace>& traces);

// Of a trace with a run: its parts, and its ranks.
Table parts_table(const CostedTrace& costed);
Table ranks_table(const CostedTrace& costed);

// The time of a steady step on the rank that computes longest, by the bound of its operators and by what it
// waits for, the longest first.
std::vector<std::pair<std::string, double>> bounds_of(const CostedTrace& costed);

}  // namespace tessera::plan
