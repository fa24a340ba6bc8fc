// Fuzzes the reader of traces, and the tables, times and timelines of what it accepts.
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/check.h"
#include "plan/hardware/trace_analysis.h"
#include "plan/schedule.h"
#include "plan/simulation.h"
#include "plan/trace.h"
#include "plan/views.h"

namespace tessera {
namespace {

using fuzz::accepts;
using fuzz::require;

// Searching the splits of an operator takes as long as reading many events.
constexpr size_t kMostAnalyzed = 64;

plan::Machine small_machine() {
  plan::Machine machine{.name = "machine", .where = "machine"};
  machine.tiles = 16;
  machine.grid_rows = machine.grid_columns = 4;
  machine.sram_bytes = 3e6;
  machine.noc_bandwidth = machine.dram_bandwidth = 1e11;
  machine.hop_latency = machine.dram_latency = 1e-7;
  machine.gemm_rates = machine.vector_rates = {{"bf16", 1e12}, {"fp32", 2e11}};
  return machine;
}

void analyze(const plan::Trace& trace, const plan::RankTrace& rank) {
  const plan::Link link{.kind = "link", .bandwidth = 1e10, .latency = 1e-6, .measured = {}};
  plan::OperationCosts costs(small_machine());
  const plan::TraceAnalysis analysis = plan::analyze_trace(trace, rank, trace.steps, costs, link);
  double total = 0;
  for (const plan::Phase phase : plan::kAllPhases) total += analysis.computing(phase);
  require(std::isfinite(total) && total >= 0, "a time is finite");
}

void simulate(const plan::Trace& trace) {
  accepts([&] {
    plan::Costs costs;
    costs.links = {{.kind = "link", .bandwidth = 1e9, .latency = 1e-6, .measured = {}}};
    std::vector<std::vector<double>> seconds;
    for (const plan::RankTrace& rank : trace.ranks) seconds.emplace_back(rank.events.size(), 1e-6);
    const plan::Schedule schedule = plan::make_schedule(trace, seconds, {}, "file");
    for (const plan::RankTimeline& rank : plan::simulate(schedule, /*repetitions=*/2, costs, "file").ranks)
      require(std::isfinite(rank.end) && rank.end >= 0, "a timeline ends");
  });
}

void run(std::string_view text) {
  plan::Trace trace;
  if (!accepts([&] { trace = plan::read_trace(text, "file"); })) return;
  const std::string written = plan::write_trace(trace);
  require(plan::write_trace(plan::read_trace(written, "file")) == written,
          "a trace survives writing and reading");
  for (const plan::RankTrace& rank : trace.ranks) {
    int64_t operations = 0;
    for (const plan::OperationRow& row : plan::operation_rows(rank)) operations += row.count.run;
    int64_t collectives = 0;
    for (const plan::CollectiveRow& row : plan::collective_rows(rank)) collectives += row.count.run;
    require(operations + collectives <= static_cast<int64_t>(rank.events.size()),
            "tables hold every event once");
    plan::flops_rows(rank);
    plan::memory_rows(rank);
    plan::pair_sizes(rank);
    if (rank.events.size() <= kMostAnalyzed) analyze(trace, rank);
  }
  simulate(trace);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
