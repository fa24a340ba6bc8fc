#include "plan/hardware_tables.h"

#include <algorithm>

#include "core/text.h"
#include "plan/trace_views.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using Unit = Table::Column::Unit;

}  // namespace

Table operators_table(const Analysis& analysis) {
  Table table({{"name", "operator"},
               {"count", "times"},
               {"shape", "shape"},
               {"split", "split"},
               {"compute_seconds", "compute", Unit::kSeconds},
               {"dram_seconds", "DRAM", Unit::kSeconds},
               {"noc_seconds", "NoC", Unit::kSeconds},
               {"latency_seconds", "latency", Unit::kSeconds},
               {"utilization", "use", Unit::kShare},
               {"bound", "bound"}});
  for (const auto& [each, mapping] : analysis.operators) {
    const std::string shape = shape_text(each.work);
    if (mapping.fits()) {
      table.add({each.name, each.count, shape, mapping.split, mapping.compute, mapping.dram, mapping.noc,
                 mapping.latency, mapping.utilization, roof_name(mapping.roof)});
    } else {
      table.add({each.name, each.count, shape, "does not fit: " + mapping.obstacle, nullptr, nullptr, nullptr,
                 nullptr, nullptr, nullptr});
    }
  }
  return table;
}

Table operators_table(const TraceAnalysis& analysis) {
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
               {"seconds", "in all", Unit::kSeconds},
               {"step_count", "times/step"},
               {"kind", "kind"},
               {"inputs", "inputs"},
               {"output", "output"},
               {"flops", "GFLOP", Unit::kGiga},
               {"bytes", "bytes", Unit::kBytes}});
  for (const TracedOperator& each : analysis.operators) {
    const Mapping& mapping = each.mapped->mapping;
    std::vector<OrderedJson> row = {phase_name(each.phase), each.name,  each.role,
                                    each.mapped->dtype,     each.count, shape_text(each.mapped->work)};
    if (mapping.fits()) {
      row.insert(row.end(), {mapping.split, mapping.compute, mapping.dram, mapping.noc, mapping.latency,
                             mapping.utilization, roof_name(mapping.roof), each.seconds()});
    } else {
      row.emplace_back("does not fit: " + mapping.obstacle);
      row.insert(row.end(), 7, nullptr);
    }
    row.insert(row.end(), {each.step_count, kind_name(each.mapped->work), shapes_text(each.inputs),
                           shape_text(each.output), each.flops, each.bytes});
    table.add(std::move(row));
  }
  return table;
}

Table longest_table(const TraceAnalysis& analysis, size_t top) {
  std::vector<const TracedOperator*> sorted;
  double all = 0;
  for (const TracedOperator& each : analysis.operators) {
    sorted.push_back(&each);
    all += each.seconds();
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->seconds() > b->seconds(); });
  Table table({{"phase", "phase"},
               {"operation", "operation, role"},
               {"shape", "shape"},
               {"count", "times"},
               {"latency_seconds", "each", Unit::kSeconds},
               {"utilization", "use", Unit::kShare},
               {"bound", "bound"},
               {"seconds", "in all", Unit::kSeconds},
               {"share", "share", Unit::kShare},
               {"split", "split"}});
  const auto share = [&](double seconds) { return all > 0 ? seconds / all : 0; };
  const size_t shown = top == 0 ? sorted.size() : std::min(top, sorted.size());
  for (size_t i = 0; i < shown; ++i) {
    const TracedOperator& each = *sorted[i];
    const Mapping& mapping = each.mapped->mapping;
    table.add({phase_name(each.phase), name_with_role(each.name, each.role), shape_text(each.mapped->work),
               each.count, mapping.latency, mapping.utilization, roof_name(mapping.roof), each.seconds(),
               share(each.seconds()), mapping.split});
  }
  if (shown < sorted.size()) {
    int64_t count = 0;
    double seconds = 0;
    for (size_t i = shown; i < sorted.size(); ++i) {
      count += sorted[i]->count;
      seconds += sorted[i]->seconds();
    }
    table.add({"", counted(static_cast<int64_t>(sorted.size() - shown), "other"), "", count, nullptr, nullptr,
               "", seconds, share(seconds), ""});
  }
  return table;
}

Table collectives_table(const TraceAnalysis& analysis) {
  Table table({{"phase", "phase"},
               {"axis", "axis"},
               {"collective", "collective"},
               {"count", "times"},
               {"bytes", "bytes", Unit::kBytes},
               {"seconds", "in all", Unit::kSeconds},
               {"step_count", "times/step"},
               {"step_bytes", "bytes/step", Unit::kBytes}});
  for (const TracedCollective& each : analysis.collectives)
    table.add({phase_name(each.phase), each.axis, each.name, each.count, whole_number(each.bytes),
               each.seconds, each.step_count, whole_number(each.step_bytes)});
  return table;
}

Table roles_table(const TraceAnalysis& analysis) {
  struct Row {
    Phase phase;
    std::string role;
    double seconds = 0;
  };
  std::vector<Row> rows;
  double all = 0;
  for (const TracedOperator& each : analysis.operators) {
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
    table.add({phase_name(row.phase), row.role, row.seconds, all > 0 ? row.seconds / all : 0});
  return table;
}

}  // namespace tessera::plan
