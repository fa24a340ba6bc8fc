#include "plan/timeline_plot.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/text.h"
#include "plan/report_parts.h"
#include "plan/svg.h"

namespace tessera::plan {
namespace {

constexpr int64_t kAlikeSteps = 3;     // the number shown of similar steps
constexpr int64_t kRecordedSteps = 4;  // more would be too narrow to compare
// Relative to the width of a plot: shorter gaps between the operations of a recording are not drawn.
constexpr double kGap = 1.0 / 1500;

// What ranks do, in seconds from a common start. `step_ends` is when the last of them has finished a step.
struct RanksTimeline {
  std::string kind;  // "predicted"; empty if there is only one kind
  std::vector<RankTimeline> ranks;
  std::vector<double> step_ends;
};

bool is_recorded(const Trace& trace) {
  return std::any_of(trace.ranks.begin(), trace.ranks.end(), [](const RankTrace& rank) {
    return std::any_of(rank.events.begin(), rank.events.end(),
                       [](const Event& event) { return event.time.has_value(); });
  });
}

// Shifts all times so that `begin` is 0, and drops what is before it.
void begin_at(RanksTimeline& timeline, double begin) {
  for (RankTimeline& rank : timeline.ranks) {
    for (Span& span : rank.spans) {
      span.begin = std::max(span.begin - begin, 0.0);
      span.end -= begin;
    }
  }
  for (double& end : timeline.step_ends) end -= begin;
}

// Keeps the spans of the denoiser, with or without those before its steps.
void keep_denoiser(RanksTimeline& timeline, const Trace& trace, int64_t first_step) {
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    std::erase_if(timeline.ranks[i].spans, [&](const Span& span) {
      const Event& event = trace.ranks[i].events[span.event];
      return event.phase != Phase::kDenoise || event.step < first_step;
    });
  }
}

// Keeps only the steps, the first of which begins at 0: before them, a run also reads weights.
void begin_with_steps(RanksTimeline& timeline, const Trace& trace) {
  keep_denoiser(timeline, trace, 0);
  double begin = std::numeric_limits<double>::max();
  for (const RankTimeline& rank : timeline.ranks) {
    for (const Span& span : rank.spans) begin = std::min(begin, span.begin);
  }
  begin_at(timeline, begin);
}

RanksTimeline predicted_timeline(const CostedTrace& costed, int64_t repetitions, bool only_steps) {
  const Trace& trace = *costed.trace;
  const Simulation simulation =
      simulate(schedule_of(trace, *costed.costs, costed.name), repetitions,
               costs_on(costed.costs->machine(), links_of(costed.link), trace.world_size), costed.name);
  RanksTimeline timeline{.kind = "predicted", .ranks = simulation.ranks, .step_ends = {}};
  double encoded = 0;
  for (const auto& [part, simulated] : simulation.parts) {
    if (part.phase == Phase::kEncode) encoded = std::max(encoded, simulated.end);
    if (part.phase == Phase::kDenoise && part.step >= 0 && part.step < trace.traced_steps)
      timeline.step_ends.push_back(simulated.end);
  }
  if (only_steps) {
    begin_with_steps(timeline, trace);
  } else {
    keep_denoiser(timeline, trace, kBeforeSteps);
    begin_at(timeline, encoded);
  }
  return timeline;
}

RanksTimeline recorded_timeline(const Trace& trace) {
  RanksTimeline timeline{.kind = "recorded",
                         .ranks = {},
                         .step_ends = std::vector<double>(static_cast<size_t>(trace.traced_steps))};
  for (const RankTrace& rank : trace.ranks) {
    RankTimeline& own = timeline.ranks.emplace_back();
    own.rank = rank.rank;
    for (size_t i = 0; i < rank.events.size(); ++i) {
      const Event& event = rank.events[i];
      if (!event.time) continue;
      const auto [begin, end] = *event.time;
      if (event.phase == Phase::kDenoise && event.step >= 0 && event.step < trace.traced_steps) {
        double& of_step = timeline.step_ends[static_cast<size_t>(event.step)];
        of_step = std::max(of_step, end);
      }
      // Operations of one kernel have the same time.
      const bool is_new = own.spans.empty() || own.spans.back().begin != begin || own.spans.back().end != end;
      if (end > begin && is_new)
        own.spans.push_back(
            {std::holds_alternative<WaitEvent>(event.what) ? Span::Kind::kWait : Span::Kind::kOperation, i,
             begin, end});
    }
  }
  begin_with_steps(timeline, trace);
  return timeline;
}

struct LanesOfRanks {
  std::vector<Lane> lanes;
  std::vector<LaneSpan> spans;
  std::vector<LaneMark> marks;
};

// Adds a lane for each rank, up to the time `until`. Work without a gap above `gap` is drawn as one span.
void add_lanes(const RanksTimeline& timeline, bool names_kind, double until, double gap, LanesOfRanks& plot) {
  const size_t first = plot.lanes.size();
  for (const RankTimeline& rank : timeline.ranks) {
    const size_t lane = plot.lanes.size();
    double busy = 0, last = 0;
    for (const Span& span : rank.spans) {
      if (span.begin >= until) continue;
      const bool waits = span.kind == Span::Kind::kWait;
      const double end = std::min(span.end, until);
      busy += waits ? 0 : end - span.begin;
      last = std::max(last, end);
      const size_t colour = waits ? 1 : 0;
      if (!plot.spans.empty() && plot.spans.back().lane == lane && plot.spans.back().colour == colour &&
          span.begin - plot.spans.back().end <= gap) {
        plot.spans.back().end = end;
        continue;
      }
      plot.spans.push_back({lane, span.begin, end, colour, waits ? "waits" : "computes"});
    }
    const std::string name = fmt::format("rank {}", rank.rank);
    plot.lanes.push_back({names_kind ? fmt::format("{}, {}", name, timeline.kind) : name,
                          last > 0 ? fmt::format("{:.0f} % computing", 100 * busy / last) : "idle"});
  }
  for (const double end : timeline.step_ends) {
    if (end <= until) plot.marks.push_back({end, first, plot.lanes.size() - first});
  }
}

std::string plot_html(const std::string& name, const LanesOfRanks& plot) {
  return lanes_chart(name, plot.lanes, plot.spans, plot.marks, {"computes", "waits"}, seconds_of);
}

// How long each drawn step took, and all steps together.
std::string steps_table(const RanksTimeline& predicted, const RanksTimeline& recorded, size_t drawn) {
  Table table({{"step", "step"},
               {"predicted_seconds", "predicted", Table::Column::Unit::kSeconds},
               {"recorded_seconds", "recorded", Table::Column::Unit::kSeconds},
               {"ratio", "predicted / recorded", Table::Column::Unit::kRatio}});
  const auto add = [&](const OrderedJson& name, double of_plan, double of_run) {
    table.add({name, of_plan, of_run, of_run > 0 ? OrderedJson(of_plan / of_run) : OrderedJson()});
  };
  const auto seconds = [](const RanksTimeline& timeline, size_t step) {
    return timeline.step_ends[step] - (step > 0 ? timeline.step_ends[step - 1] : 0);
  };
  for (size_t step = 0; step < drawn; ++step) add(step, seconds(predicted, step), seconds(recorded, step));
  add("all", predicted.step_ends.back(), recorded.step_ends.back());
  return table_html(table);
}

std::string both_html(const CostedTrace& costed) {
  const RanksTimeline predicted = predicted_timeline(costed, 1, true),
                      recorded = recorded_timeline(*costed.trace);
  const auto steps = static_cast<int64_t>(recorded.step_ends.size());
  const auto drawn = static_cast<size_t>(std::min(steps, kRecordedSteps));
  const double until = std::max(predicted.step_ends[drawn - 1], recorded.step_ends[drawn - 1]);
  LanesOfRanks plot;
  add_lanes(predicted, true, predicted.step_ends[drawn - 1], 0, plot);
  add_lanes(recorded, true, recorded.step_ends[drawn - 1], until * kGap, plot);
  return plot_html("Timelines of the ranks in the denoiser, as predicted and as recorded", plot) +
         fmt::format(
             "<p>{} drawn, at one scale. A line marks the end of a step. A recording knows nothing of what "
             "is "
             "white in it: what ranks ask each other, and the program between operations. Times of the "
             "table in ms.</p>\n",
             steps == 1 ? "The step is"
             : drawn == static_cast<size_t>(steps)
                 ? fmt::format("All {} steps are", steps)
                 : fmt::format("The first {} of {} steps are", drawn, steps)) +
         steps_table(predicted, recorded, drawn);
}

}  // namespace

std::string timeline_html(const CostedTrace& costed) {
  const Trace& trace = *costed.trace;
  // A recording has all steps of its run.
  if (is_recorded(trace) && trace.traced_steps == costed.steps) return both_html(costed);
  const int64_t all = costed.steps - trace.traced_steps + 1, drawn = std::min<int64_t>(all, kAlikeSteps);
  LanesOfRanks plot;
  add_lanes(predicted_timeline(costed, drawn, false), false, std::numeric_limits<double>::max(), 0, plot);
  std::string html = plot_html("Timeline of the ranks in the denoiser", plot);
  if (drawn < all)
    html += fmt::format(
        "<p>A steady step is drawn {} times, of {} in the run. A line marks the end of a step.</p>\n", drawn,
        all);
  return html;
}

}  // namespace tessera::plan
