#include "cli/trace_report.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/svg.h"
#include "cli/units.h"
#include "core/counted.h"
#include "plan/simulation.h"
#include "plan/views.h"

namespace tessera::cli {
namespace {

using plan::Phase;
using plan::RankTrace;
using plan::Trace;

constexpr size_t kMostRoles = 16, kMostPoints = 1500;

constexpr const char* kStyle = R"(
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.5em 0; } th, td { padding: 2px 10px; text-align: right; }
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
std::string seconds_of(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.1f} us", seconds * 1e6);
}

std::string row_html(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) html += fmt::format("<{0}>{1}</{0}>", tag, html_escaped(cell));
  return html + "</tr>\n";
}

// Sums are doubles: what a file says may be more than an integer holds.
double sum_of_flops(const RankTrace& rank, Phase phase) {
  double flops = 0;
  for (const plan::FlopsRow& row : plan::flops_rows(rank)) {
    if (row.phase == phase) flops += static_cast<double>(row.products) + static_cast<double>(row.elementwise);
  }
  return flops;
}

double sum_of_sent(const RankTrace& rank, Phase phase) {
  double sent = 0;
  for (const plan::CollectiveRow& row : plan::collective_rows(rank)) {
    if (row.phase == phase) sent += static_cast<double>(row.sent);
  }
  return sent;
}

std::string summary(const Trace& trace) {
  std::string html =
      "<table>\n" + row_html({"rank", "phase", "FLOPs", "sent", "weights", "peak memory"}, "th");
  for (const RankTrace& rank : trace.ranks) {
    for (const plan::MemoryRow& row : plan::memory_rows(rank))
      html += row_html(
          {std::to_string(rank.rank), plan::phase_name(row.phase), flops_of(sum_of_flops(rank, row.phase)),
           bytes_of(sum_of_sent(rank, row.phase)), bytes_of(static_cast<double>(row.weights)),
           bytes_of(static_cast<double>(row.weights + row.peak))},
          "td");
  }
  html += "</table>\n";
  if (trace.traced_steps < trace.steps)
    html += fmt::format("<p>Of {} steps the first {} {} traced.</p>\n", trace.steps, trace.traced_steps,
                        trace.traced_steps == 1 ? "is" : "are");
  return html;
}

// The largest sums by role, of operations of the denoiser.
std::string by_role(const RankTrace& rank, const NumberText& text, const auto& value_of) {
  std::map<std::string, double> sums;
  for (const plan::OperationRow& row : plan::operation_rows(rank)) {
    if (row.phase != Phase::kDenoise) continue;
    sums[row.role.empty() ? row.name : row.name + " " + row.role] += value_of(row);
  }
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
  return bar_chart(bars, {}, text);
}

// What the rank that sends most sends in the denoiser, by axis, for each trace.
std::string bytes_by_axis(const std::vector<NamedTrace>& traces) {
  std::set<std::string> axes;
  std::vector<std::map<std::string, double>> sent(traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const RankTrace& rank : traces[i].trace.ranks) {
      std::map<std::string, double> of_rank;
      double all = 0, most = 0;
      for (const plan::CollectiveRow& row : plan::collective_rows(rank)) {
        if (row.phase != Phase::kDenoise || row.sent == 0) continue;
        of_rank[row.axis] += static_cast<double>(row.sent);
        all += static_cast<double>(row.sent);
        axes.insert(row.axis);
      }
      for (const auto& [axis, bytes] : sent[i]) most += bytes;
      if (all > most) sent[i] = of_rank;
    }
  }
  std::vector<Bar> bars;
  for (size_t i = 0; i < traces.size(); ++i) {
    Bar bar{traces[i].name, {}};
    for (const std::string& axis : axes) bar.parts.push_back(sent[i][axis]);
    bars.push_back(std::move(bar));
  }
  if (axes.empty()) return "<p>Nothing is sent.</p>\n";
  return bar_chart(bars, {axes.begin(), axes.end()}, bytes_of);
}

std::string memory_over_step(const Trace& trace) {
  std::vector<Series> series;
  for (const RankTrace& rank : trace.ranks) {
    Series line{fmt::format("rank {}", rank.rank), {}};
    const auto weights = static_cast<double>(rank.weights_bytes.at(static_cast<size_t>(Phase::kDenoise)));
    std::vector<double> peaks;
    for (const plan::Event& event : rank.events) {
      if (event.phase == Phase::kDenoise) peaks.push_back(static_cast<double>(event.peak_bytes));
    }
    // Of so many events in a row the highest is drawn.
    const size_t every = peaks.size() / kMostPoints + 1;
    for (size_t i = 0; i < peaks.size(); i += every) {
      const auto end = peaks.begin() + static_cast<int64_t>(std::min(i + every, peaks.size()));
      line.points.emplace_back(static_cast<double>(i),
                               weights + *std::max_element(peaks.begin() + static_cast<int64_t>(i), end));
    }
    series.push_back(std::move(line));
  }
  return line_chart(series, {.x = "events of the denoiser, in the order of the program",
                             .y = "bytes in use, with weights",
                             .x_text = [](double x) { return fmt::format("{:.0f}", x); },
                             .y_text = bytes_of});
}

// The rate at which a machine runs an operation, and the time that it takes at least: for its arithmetic or
// its bytes.
struct Roof {
  const plan::Machine& machine;

  std::string dtype(const plan::TensorShape& shape) const {
    const std::string name = c10::elementSize(shape.dtype) == 4 ? "fp32"
                             : shape.dtype == at::kHalf         ? "fp16"
                                                                : "bf16";
    return plan::nearest_dtype(machine, name);
  }
  double rate(const plan::TensorShape& output, bool is_product) const {
    return is_product ? machine.gemm_rate(dtype(output)) : machine.vector_rate(dtype(output));
  }
  double seconds(const plan::TensorShape& output, bool is_product, int64_t flops, int64_t bytes) const {
    return std::max(static_cast<double>(flops) / rate(output, is_product),
                    static_cast<double>(bytes) / machine.dram_bandwidth);
  }
};

std::string roofline(const RankTrace& rank, const Roof& roof) {
  Series products{"products", {}, false}, others{"others", {}, false};
  double least = 1, most = 1, peak = 0;
  for (const plan::OperationRow& row : plan::operation_rows(rank)) {
    if (row.phase != Phase::kDenoise || row.flops == 0 || row.bytes == 0) continue;
    const double intensity = static_cast<double>(row.flops) / static_cast<double>(row.bytes);
    const bool product = plan::is_product(row.name);
    const double rate =
        static_cast<double>(row.flops) / roof.seconds(row.output, product, row.flops, row.bytes);
    (product ? products : others).points.emplace_back(intensity, rate);
    least = std::min(least, intensity);
    most = std::max(most, intensity);
    peak = std::max(peak, roof.rate(row.output, product));
  }
  if (products.points.empty() && others.points.empty()) return "<p>Nothing is computed.</p>\n";
  Series line{"the machine's roof", {}};
  const double ridge = peak / roof.machine.dram_bandwidth;
  line.points = {
      {least / 2, least / 2 * roof.machine.dram_bandwidth}, {ridge, peak}, {std::max(most, ridge) * 2, peak}};
  const auto rate_text = [](double x) {
    return x >= 1e12 ? fmt::format("{:.4g} TFLOP/s", x / 1e12) : fmt::format("{:.4g} GFLOP/s", x / 1e9);
  };
  return line_chart({products, others, line}, {.x = "FLOPs for each byte of inputs and outputs",
                                               .y = "most FLOP/s",
                                               .x_text = [](double x) { return fmt::format("{:.3g}", x); },
                                               .y_text = rate_text,
                                               .logarithmic = true});
}

std::string timeline(const NamedTrace& named, const Roof& roof) {
  const plan::Machine& machine = roof.machine;
  const plan::Link* link = machine.links.empty() ? nullptr : &machine.links.front();
  const Trace& trace = named.trace;
  if (trace.world_size > 1 && (link == nullptr || !link->bandwidth))
    return "<p>The machine's file says no bandwidth between devices, so no timeline of ranks is drawn.</p>\n";
  if (static_cast<int64_t>(trace.ranks.size()) < trace.world_size)
    return "<p>The trace does not hold all ranks, so no timeline is drawn.</p>\n";
  Trace denoising = trace;
  for (RankTrace& rank : denoising.ranks)
    std::erase_if(rank.events, [](const plan::Event& event) { return event.phase != Phase::kDenoise; });
  const plan::Costs costs{.operation =
                              [&](const plan::OperationEvent& each) {
                                return roof.seconds(each.output, plan::is_product(each.name), each.flops,
                                                    each.bytes);
                              },
                          .bandwidth = link && link->bandwidth ? *link->bandwidth : 1,
                          .latency = link ? link->latency : 0};
  const std::vector<plan::RankTimeline> ranks = plan::simulate(denoising, costs, named.name);
  std::vector<std::string> lanes;
  std::vector<LaneSpan> spans;
  for (size_t i = 0; i < ranks.size(); ++i) {
    lanes.push_back(fmt::format("rank {}", ranks[i].rank));
    for (const plan::Span& span : ranks[i].spans) {
      const bool waits = span.kind == plan::Span::Kind::kWait;
      // Work without a gap is one span of the picture.
      if (!spans.empty() && spans.back().lane == i && spans.back().colour == (waits ? 1 : 0) &&
          spans.back().end == span.begin) {
        spans.back().end = span.end;
        continue;
      }
      spans.push_back({i, span.begin, span.end, waits ? size_t{1} : size_t{0}, waits ? "waits" : "computes"});
    }
  }
  return lanes_chart(lanes, spans, {"computes", "waits"}, seconds_of);
}

std::string machine_section(const NamedTrace& named, const plan::Machine& machine) {
  const Roof roof{machine};
  const RankTrace& first = named.trace.ranks.front();
  std::string html = "<h2>Roofline of " + html_escaped(machine.name) + "</h2>\n" + roofline(first, roof);
  html += "<h2>Time of each role on " + html_escaped(machine.name) + ", at the least</h2>\n" +
          by_role(first, seconds_of, [&](const plan::OperationRow& row) {
            return roof.seconds(row.output, plan::is_product(row.name), row.flops, row.bytes);
          });
  return html + "<h2>Timeline of the ranks in the denoiser, at the least</h2>\n" + timeline(named, roof);
}

}  // namespace

std::string report_html(const std::vector<NamedTrace>& traces, const std::optional<plan::Machine>& machine) {
  std::set<std::string> models;
  for (const NamedTrace& named : traces) models.insert(named.trace.model);
  const std::string title = fmt::format("{}", fmt::join(models, ", "));
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{}</title>\n"
      "<style>{}</style></head>\n<body>\n<h1>{}</h1>\n",
      html_escaped(title), kStyle, html_escaped(title));
  if (traces.size() > 1)
    html += "<h2>Bytes that the busiest rank sends in the denoiser</h2>\n" + bytes_by_axis(traces);
  for (const NamedTrace& named : traces) {
    const RankTrace& first = named.trace.ranks.front();
    html += fmt::format("<h2>{}: {}, {}</h2>\n", html_escaped(named.name), html_escaped(named.trace.model),
                        counted(named.trace.world_size, "rank")) +
            summary(named.trace);
    html += fmt::format("<h2>FLOPs of each role in the denoiser, rank {}</h2>\n", first.rank) +
            by_role(first, flops_of,
                    [](const plan::OperationRow& row) { return static_cast<double>(row.flops); });
    if (traces.size() == 1) html += "<h2>Bytes sent in the denoiser</h2>\n" + bytes_by_axis(traces);
    html += "<h2>Memory over the denoiser</h2>\n" + memory_over_step(named.trace);
    if (machine) html += machine_section(named, *machine);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace tessera::cli
