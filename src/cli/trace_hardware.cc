#include "cli/trace_hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cli/find_machine.h"
#include "cli/table.h"
#include "cli/trace_views.h"
#include "cli/units.h"
#include "core/error.h"
#include "plan/hardware/trace_analysis.h"

namespace tessera::cli {
namespace {

using Unit = Table::Column::Unit;

Table operators_table(const plan::TraceAnalysis& analysis) {
  Table table({{"phase", "phase"},
               {"operation", "operation"},
               {"role", "role"},
               {"dtype", "dtype"},
               {"count", "times"},
               {"shape", "shape"},
               {"split", "split"},
               {"compute_seconds", "compute", Unit::kSeconds},
               {"dram_seconds", "DRAM", Unit::kSeconds},
               {"noc_seconds", "NoC", Unit::kSeconds},
               {"latency_seconds", "latency", Unit::kSeconds},
               {"utilization", "use", Unit::kShare},
               {"bound", "bound"},
               {"seconds", "in all", Unit::kSeconds}});
  for (const plan::TracedOperator& each : analysis.operators) {
    const plan::Mapping& mapping = each.mapping;
    const std::string phase = plan::phase_name(each.phase), shape = plan::shape_text(each.work);
    if (mapping.fits()) {
      table.add({phase, each.name, each.role, each.dtype, each.count, shape, mapping.split, mapping.compute,
                 mapping.dram, mapping.noc, mapping.latency, mapping.utilization,
                 plan::roof_name(mapping.roof), each.seconds()});
    } else {
      table.add({phase, each.name, each.role, each.dtype, each.count, shape,
                 "does not fit: " + mapping.obstacle, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                 nullptr});
    }
  }
  return table;
}

Table collectives_table(const plan::TraceAnalysis& analysis) {
  Table table({{"phase", "phase"},
               {"axis", "axis"},
               {"collective", "collective"},
               {"count", "times"},
               {"bytes", "bytes", Unit::kBytes},
               {"seconds", "in all", Unit::kSeconds}});
  for (const plan::TracedCollective& each : analysis.collectives)
    table.add({plan::phase_name(each.phase), each.axis, each.name, each.count, whole_number(each.bytes),
               each.seconds});
  return table;
}

// The longest first; what has no role stands under its own name.
Table roles_table(const plan::TraceAnalysis& analysis) {
  struct Row {
    plan::Phase phase;
    std::string role;
    double seconds = 0;
  };
  std::vector<Row> rows;
  double all = 0;
  for (const plan::TracedOperator& each : analysis.operators) {
    const std::string& role = each.role.empty() ? each.name : each.role;
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.phase == each.phase && other.role == role;
    });
    if (row == rows.end()) row = rows.insert(rows.end(), {each.phase, role, 0});
    row->seconds += each.seconds();
    all += each.seconds();
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  Table table({{"phase", "phase"},
               {"role", "role"},
               {"seconds", "in all", Unit::kSeconds},
               {"share", "of computing", Unit::kShare}});
  for (const Row& row : rows)
    table.add({plan::phase_name(row.phase), row.role, row.seconds, all > 0 ? row.seconds / all : 0});
  return table;
}

Table phases_table(const plan::TraceAnalysis& analysis) {
  Table table({{"phase", "phase"},
               {"computing_seconds", "computing", Unit::kSeconds},
               {"sending_seconds", "sending", Unit::kSeconds},
               {"seconds", "in all", Unit::kSeconds}});
  for (const plan::Phase phase : plan::kAllPhases) {
    const double computing = analysis.computing(phase), sending = analysis.sending(phase);
    if (computing + sending > 0)
      table.add({plan::phase_name(phase), computing, sending, computing + sending});
  }
  return table;
}

// What does not fit, each once.
std::vector<std::string> obstacles_of(const plan::TraceAnalysis& analysis) {
  std::set<std::string> names;
  for (const plan::TracedOperator& each : analysis.operators) {
    if (!each.mapping.fits()) names.insert(each.role.empty() ? each.name : each.name + " " + each.role);
  }
  return {names.begin(), names.end()};
}

}  // namespace

plan::Link chosen_link(const AnalyzeArguments& arguments, const plan::Machine& machine) {
  plan::Link link = plan::find_link(machine, arguments.link);
  if (arguments.link_gb_per_s) link.bandwidth = *arguments.link_gb_per_s * 1e9;
  if (!link.bandwidth)
    usage_error(field("link_gb_per_s"), "is needed: {} does not tell the bandwidth of its link '{}'",
                machine.where, link.kind);
  return link;
}

void print_trace_hardware(const AnalyzeArguments& arguments) {
  const std::string& path = arguments.traces.front();
  const plan::Machine machine = plan::read_machine(find_machine(arguments.machine));
  const plan::Trace trace = read_trace_file(path);
  const plan::RankTrace& rank = rank_of(trace, arguments.rank, path);
  std::optional<plan::Link> link;
  if (plan::has_collectives(rank)) {
    link = chosen_link(arguments, machine);
  } else if (arguments.link || arguments.link_gb_per_s) {
    usage_error(field(arguments.link ? "link" : "link_gb_per_s"),
                "is between devices, but rank {} of {} sends nothing; leave it out", rank.rank, path);
  }
  const int64_t steps = arguments.num_inference_steps.value_or(trace.steps);
  const plan::TraceAnalysis analysis =
      plan::analyze_trace(trace, rank, steps, machine,
                          {.as_published = arguments.as_published, .preset = arguments.preset_splits}, link);
  const std::vector<std::string> obstacles = obstacles_of(analysis);
  if (arguments.json) {
    const OrderedJson json = {{"machine", machine.name},
                              {"model", trace.model},
                              {"rank", rank.rank},
                              {"world_size", trace.world_size},
                              {"num_inference_steps", steps},
                              {"as_published", arguments.as_published},
                              {"operators", operators_table(analysis).json()},
                              {"collectives", collectives_table(analysis).json()},
                              {"roles", roles_table(analysis).json()},
                              {"phases", phases_table(analysis).json()},
                              {"without", obstacles},
                              {"total_seconds", analysis.total()}};
    fmt::print("{}\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    return;
  }
  if (arguments.csv) {
    fmt::print("{}", operators_table(analysis).text(Table::Form::kCsv));
    return;
  }
  fmt::print("{}{}: {}, rank {} of {}, {} steps. Times in ms, those of compute to latency of one run\n\n{}\n",
             machine.name, arguments.as_published ? ", as published" : "", trace.model, rank.rank,
             trace.world_size, steps, operators_table(analysis).text(Table::Form::kText));
  fmt::print("{}\n", roles_table(analysis).text(Table::Form::kText));
  if (!analysis.collectives.empty()) fmt::print("{}\n", collectives_table(analysis).text(Table::Form::kText));
  fmt::print("{}\nIn all, one after the other: {} s\n", phases_table(analysis).text(Table::Form::kText),
             seconds_text(analysis.total()));
  if (!obstacles.empty()) fmt::print("Not counted, since no split fits: {}\n", fmt::join(obstacles, ", "));
}

}  // namespace tessera::cli
