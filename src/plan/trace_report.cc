#include "plan/trace_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/text.h"
#include "plan/costed_trace.h"
#include "plan/report_parts.h"
#include "plan/svg.h"
#include "plan/timeline_plot.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using Unit = Table::Column::Unit;

constexpr size_t kMostRoles = 16, kMostPoints = 1500;

constexpr const char* kStyle = R"(
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.5em 0; display: block; max-width: 100%; overflow-x: auto; } th, td { padding: 2px 10px; text-align: right; }
th { border-bottom: 1px solid #888; } td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; font-size: 12px; } .grid { stroke: #ddd; } .legend { margin: 0.2em 0; font-size: 13px; }
)";

std::string bytes_of(double bytes) {
  return bytes_text(static_cast<uint64_t>(std::max(bytes, 0.0)));
}
std::string flops_of(double flops) {
  if (flops >= 1e12) return fmt::format("{:.2f} TFLOP", flops / 1e12);
  return flops >= 1e9 ? fmt::format("{:.2f} GFLOP", flops / 1e9) : fmt::format("{:.2f} MFLOP", flops / 1e6);
}
RunSteps steps_of(const Trace& trace) {
  return {trace.traced_steps, trace.steps};
}

// By rank and phase, for a steady step and for the run.
std::string summary(const Trace& trace) {
  const RunSteps steps = steps_of(trace);
  Table table({{"rank", "rank"},
               {"phase", "phase"},
               {"step_flops", "GFLOP/step", Unit::kGiga},
               {"flops", "GFLOP/run", Unit::kGiga},
               {"step_sent", "sent/step", Unit::kBytes},
               {"sent", "sent/run", Unit::kBytes},
               {"weights", "weights", Unit::kBytes},
               {"peak", "peak memory", Unit::kBytes}});
  for (const RankTrace& rank : trace.ranks) {
    for (const MemoryRow& row : memory_rows(rank)) {
      Sum flops, sent;
      for (const OperationRow& each : operation_rows(rank, steps))
        if (each.phase == row.phase) flops += each.flops;
      for (const CollectiveRow& each : collective_rows(rank, steps))
        if (each.phase == row.phase) sent += each.sent;
      const bool has_steps = row.phase == Phase::kDenoise;
      table.add({rank.rank, phase_name(row.phase), has_steps ? OrderedJson(flops.step) : OrderedJson(),
                 flops.run, has_steps ? OrderedJson(sent.step) : OrderedJson(), sent.run, row.weights,
                 row.weights + row.peak});
    }
  }
  return table_html(table) +
         fmt::format("<p>Of the run's {}, {} traced. A step is a steady one.</p>\n",
                     counted(trace.steps, "step"),
                     trace.traced_steps == 1 ? "the first is" : fmt::format("{} are", trace.traced_steps));
}

// The largest sums of a steady step by role.
std::string by_role(const std::string& name, const std::map<std::string, double>& sums,
                    const NumberText& text) {
  std::vector<Bar> bars;
  for (const auto& [role, sum] : sums) {
    if (sum > 0) bars.push_back({role, {sum}});
  }
  std::sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.parts[0] > b.parts[0]; });
  if (bars.size() > kMostRoles) {
    Bar rest{fmt::format("{} others", bars.size() - kMostRoles), {0}};
    for (size_t i = kMostRoles; i < bars.size(); ++i) rest.parts[0] += bars[i].parts[0];
    bars.resize(kMostRoles);
    bars.push_back(std::move(rest));
  }
  return bar_chart(name, bars, {}, text);
}

std::string flops_by_role(const Trace& trace, const RankTrace& rank) {
  std::map<std::string, double> sums;
  for (const OperationRow& row : operation_rows(rank, steps_of(trace)))
    sums[name_with_role(row.name, row.role)] += static_cast<double>(row.flops.step);
  return by_role("FLOPs of each role in a steady step", sums, flops_of);
}

// For each trace, by axis: the bytes sent in a steady step by the rank that sends most.
std::string bytes_by_axis(const std::vector<NamedTrace>& traces) {
  std::set<std::string> axes;
  std::vector<std::map<std::string, double>> sent(traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    double most = 0;
    for (const RankTrace& rank : traces[i].trace.ranks) {
      std::map<std::string, double> of_rank;
      double all = 0;
      for (const CollectiveRow& row : collective_rows(rank, steps_of(traces[i].trace))) {
        if (row.sent.step == 0) continue;
        of_rank[row.axis] += static_cast<double>(row.sent.step);
        all += static_cast<double>(row.sent.step);
        axes.insert(row.axis);
      }
      if (all <= most) continue;
      most = all;
      sent[i] = of_rank;
    }
  }
  std::vector<Bar> bars;
  for (size_t i = 0; i < traces.size(); ++i) {
    Bar bar{traces[i].name, {}};
    for (const std::string& axis : axes) bar.parts.push_back(sent[i][axis]);
    bars.push_back(std::move(bar));
  }
  if (axes.empty()) return "<p>Nothing is sent.</p>\n";
  return bar_chart("Bytes sent in a steady step", bars, {axes.begin(), axes.end()}, bytes_of);
}

std::string memory_over_step(const Trace& trace) {
  std::vector<Series> series;
  for (const RankTrace& rank : trace.ranks) {
    Series line{fmt::format("rank {}", rank.rank), {}};
    const auto weights = static_cast<double>(rank.weights_bytes.at(static_cast<size_t>(Phase::kDenoise)));
    std::vector<double> peaks;
    for (const Event& event : rank.events) {
      if (event.phase == Phase::kDenoise) peaks.push_back(static_cast<double>(event.peak_bytes));
    }
    // The highest of this many consecutive events is drawn.
    const size_t every = peaks.size() / kMostPoints + 1;
    for (size_t i = 0; i < peaks.size(); i += every) {
      const auto end = peaks.begin() + static_cast<int64_t>(std::min(i + every, peaks.size()));
      line.points.emplace_back(static_cast<double>(i),
                               weights + *std::max_element(peaks.begin() + static_cast<int64_t>(i), end));
    }
    series.push_back(std::move(line));
  }
  return line_chart("Memory over the denoiser", series,
                    {.x = "events of the denoiser, in the order of the program",
                     .y = "bytes in use, with weights",
                     .x_text = [](double x) { return fmt::format("{:.0f}", x); },
                     .y_text = bytes_of});
}

std::string roofline(const CostedTrace& costed, const TraceAnalysis& analysis) {
  const Machine& machine = costed.costs->machine();
  Series products{"products", {}, false}, others{"others", {}, false};
  double least = 1, most = 1, peak = 0;
  for (const TracedOperator& each : analysis.operators) {
    if (each.step_count == 0 || each.flops == 0 || each.bytes == 0 || !each.mapped->mapping.fits()) continue;
    const double intensity = static_cast<double>(each.flops) / static_cast<double>(each.bytes);
    const bool product = is_product(each.name);
    (product ? products : others)
        .points.emplace_back(intensity, static_cast<double>(each.flops) / each.mapped->mapping.latency);
    least = std::min(least, intensity);
    most = std::max(most, intensity);
    peak = std::max(
        peak, product ? machine.gemm_rate(each.mapped->dtype) : machine.vector_rate(each.mapped->dtype));
  }
  if (products.points.empty() && others.points.empty()) return "<p>Nothing is computed.</p>\n";
  Series line{"the machine's roof", {}};
  const double ridge = peak / machine.dram_bandwidth;
  line.points = {
      {least / 2, least / 2 * machine.dram_bandwidth}, {ridge, peak}, {std::max(most, ridge) * 2, peak}};
  const auto rate_text = [](double x) {
    return x >= 1e12 ? fmt::format("{:.4g} TFLOP/s", x / 1e12) : fmt::format("{:.4g} GFLOP/s", x / 1e9);
  };
  const auto intensity_text = [](double x) {
    return x < 100 ? fmt::format("{:.3g}", x) : fmt::format("{:.0f}", x);  // never in scientific notation
  };
  return line_chart("Roofline", {products, others, line},
                    {.x = "FLOPs for each byte of inputs and outputs",
                     .y = "FLOP/s as estimated",
                     .x_text = intensity_text,
                     .y_text = rate_text,
                     .logarithmic = true});
}

std::string machine_section(const CostedTrace& costed) {
  const std::string name = html_escaped(costed.costs->machine().name);
  if (!costed.run)
    return static_cast<int64_t>(costed.trace->ranks.size()) < costed.trace->world_size
               ? "<p>The trace does not hold all ranks, so no times are given.</p>\n"
               : "<p>The machine's file says no bandwidth between devices, so no times of ranks are "
                 "given.</p>\n";
  const RankTrace& rank = costed.busiest();
  const TraceAnalysis analysis = analyze_trace(*costed.trace, rank, costed.steps, *costed.costs, costed.link);
  std::map<std::string, double> seconds;
  for (const TracedOperator& each : analysis.operators)
    seconds[name_with_role(each.name, each.role)] += each.step_seconds();
  std::string html = fmt::format("<h2>The run on {}: {}</h2>\n", name, seconds_of(costed.run->seconds));
  if (!costed.obstacles.empty())
    html += fmt::format("<p>Without operators of which no split fits: {}</p>\n",
                        html_escaped(fmt::format("{}", fmt::join(costed.obstacles, ", "))));
  html += "<p>Times in ms.</p>\n" + table_html(parts_table(costed)) + table_html(ranks_table(costed));
  html += fmt::format("<h2>Time of each role in a steady step on {}, rank {}</h2>\n", name, rank.rank) +
          by_role("Time of each role in a steady step", seconds, seconds_of);
  html += "<h2>Timeline of the ranks in the denoiser</h2>\n" + timeline_html(costed);
  return html + "<h2>Roofline of " + name + "</h2>\n" + roofline(costed, analysis);
}

}  // namespace

std::string report_html(const std::vector<NamedTrace>& traces, const std::optional<Machine>& machine) {
  std::set<std::string> models;
  std::vector<CostedTrace> costed;
  const auto costs = machine ? std::make_shared<OperationCosts>(*machine) : nullptr;
  std::optional<Link> link;
  if (machine && !machine->links.empty() && machine->links.front().bandwidth) link = machine->links.front();
  for (const NamedTrace& named : traces) {
    models.insert(named.trace.model);
    costed.push_back(cost_trace(named.name, named.trace, named.trace.steps, costs, link));
  }
  const std::string title = fmt::format("{}", fmt::join(models, ", "));
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{}</title>\n"
      "<style>{}</style></head>\n<body>\n<h1>{}</h1>\n",
      html_escaped(title), kStyle, html_escaped(title));
  if (traces.size() > 1)
    html += "<h2>The runs</h2>\n" + table_html(comparison_table(costed)) +
            "<p>Times in ms. FLOPs, bytes and memory are of the rank that has most.</p>\n"
            "<h2>Bytes that the busiest rank sends in a steady step</h2>\n" +
            bytes_by_axis(traces);
  for (size_t i = 0; i < traces.size(); ++i) {
    const Trace& trace = traces[i].trace;
    const RankTrace& first = trace.ranks.front();
    html += fmt::format("<h2>{}: {}, {}</h2>\n", html_escaped(traces[i].name), html_escaped(trace.model),
                        counted(trace.world_size, "rank")) +
            summary(trace);
    if (machine) html += machine_section(costed[i]);
    html += fmt::format("<h2>FLOPs of each role in a steady step, rank {}</h2>\n", first.rank) +
            flops_by_role(trace, first);
    if (traces.size() == 1) html += "<h2>Bytes sent in a steady step</h2>\n" + bytes_by_axis(traces);
    html += "<h2>Memory over the denoiser, in the traced steps</h2>\n" + memory_over_step(trace);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace tessera::plan
