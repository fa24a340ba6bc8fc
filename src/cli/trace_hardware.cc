#include "cli/trace_hardware.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/table.h"
#include "core/text.h"
#include "plan/costed_trace.h"
#include "plan/find_machine.h"
#include "plan/hardware_tables.h"
#include "plan/trace_views.h"

namespace tessera::cli {
namespace {

OrderedJson phases_json(const plan::CostedTrace& costed) {
  OrderedJson phases = OrderedJson::array();
  for (const plan::Phase phase : plan::kAllPhases) {
    const double seconds = costed.run->phase_seconds(phase);
    if (seconds > 0) phases.push_back({{"phase", plan::phase_name(phase)}, {"seconds", seconds}});
  }
  return phases;
}

OrderedJson analysis_json(const plan::CostedTrace& costed, const plan::RankTrace& rank,
                          const plan::TraceAnalysis& analysis) {
  const bool is_whole = costed.seconds().has_value();
  OrderedJson json = {{"machine", costed.costs->machine().name},
                      {"model", costed.trace->model},
                      {"world_size", costed.trace->world_size},
                      {"num_inference_steps", costed.steps},
                      {"traced_steps", costed.trace->traced_steps},
                      {"total_seconds", is_whole ? OrderedJson(costed.run->seconds) : OrderedJson()},
                      {"step_seconds", is_whole ? OrderedJson(costed.run->step_seconds) : OrderedJson()},
                      {"without", costed.obstacles}};
  json["parts"] = costed.run ? plan::parts_table(costed).json() : OrderedJson();
  json["phases"] = costed.run ? phases_json(costed) : OrderedJson();
  json["ranks"] = costed.run ? plan::ranks_table(costed).json() : OrderedJson();
  json["busiest_rank"] = costed.run ? OrderedJson(costed.busiest().rank) : OrderedJson();
  json["imbalance"] = costed.run ? OrderedJson(costed.run->imbalance()) : OrderedJson();
  OrderedJson bounds = OrderedJson::object();
  for (const auto& [name, seconds] : plan::bounds_of(costed)) bounds[name] = seconds;
  json["step_bounds"] = std::move(bounds);
  json["rank"] = rank.rank;
  json["operators"] = plan::operators_table(analysis).json();
  json["collectives"] = plan::collectives_table(analysis).json();
  json["roles"] = plan::roles_table(analysis).json();
  return json;
}

std::string bounds_text(const plan::CostedTrace& costed) {
  const auto bounds = plan::bounds_of(costed);
  double all = 0;
  for (const auto& [name, seconds] : bounds) all += seconds;
  std::vector<std::string> texts;
  for (const auto& [name, seconds] : bounds)
    if (seconds >= 0.005 * all) texts.push_back(fmt::format("{} {:.0f} %", name, 100 * seconds / all));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string balance_text(const plan::CostedTrace& costed) {
  const std::string times = fmt::format("{:.2f}", costed.run->imbalance());
  return times == "1.00" ? "All ranks compute as long, within 1 %"
                         : fmt::format("Rank {} computes longest, {} times the mean of all",
                                       costed.busiest().rank, times);
}

// The answer: how long the run takes, and of what.
void print_run(const plan::CostedTrace& costed) {
  const plan::Trace& trace = *costed.trace;
  if (!costed.run) {
    fmt::print("No total: the trace holds {} of {} ranks, so nobody knows how they wait for each other\n\n",
               trace.ranks.size(), trace.world_size);
    return;
  }
  const plan::RunCosts& run = *costed.run;
  const std::string left_out =
      costed.obstacles.empty()
          ? ""
          : fmt::format(" without {} of which no split fits",
                        counted(static_cast<int64_t>(costed.obstacles.size()), "operator"));
  fmt::print("The run takes {} s{}; a steady step {} ms. A step is bound by: {}\n", seconds_text(run.seconds),
             left_out, milliseconds_text(run.step_seconds), bounds_text(costed));
  if (trace.world_size > 1) fmt::print("{}\n", balance_text(costed));
  fmt::print("\n{}\n{}\n", plan::parts_table(costed).text(Table::Form::kText),
             plan::ranks_table(costed).text(Table::Form::kText));
}

void print_text(const AnalyzeArguments& arguments, const plan::CostedTrace& costed,
                const plan::RankTrace& rank, const plan::TraceAnalysis& analysis) {
  const plan::Trace& trace = *costed.trace;
  fmt::print("{}: {}, {}, {}. Times in ms\n\n", costed.costs->machine().name, trace.model,
             counted(trace.world_size, "rank"), counted(costed.steps, "step"));
  print_run(costed);
  fmt::print("Operators of rank {}\n{}", rank.rank,
             plan::longest_table(analysis, static_cast<size_t>(arguments.top)).text(Table::Form::kText));
  if (!analysis.collectives.empty())
    fmt::print("\nMessages of rank {}, each by itself\n{}", rank.rank,
               plan::collectives_table(analysis).text(Table::Form::kText));
  if (!costed.obstacles.empty())
    fmt::print("\nNot counted, since no split fits: {}\n", fmt::join(costed.obstacles, ", "));
}

void print_one(const AnalyzeArguments& arguments, const plan::CostedTrace& costed) {
  const plan::RankTrace& rank =
      arguments.rank ? plan::rank_of(*costed.trace, arguments.rank, costed.name) : costed.busiest();
  const plan::TraceAnalysis analysis =
      plan::analyze_trace(*costed.trace, rank, costed.steps, *costed.costs, costed.link);
  if (arguments.json) {
    const OrderedJson json = analysis_json(costed, rank, analysis);
    fmt::print("{}\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  } else if (arguments.csv) {
    fmt::print("{}", plan::operators_table(analysis).text(Table::Form::kCsv));
  } else {
    print_text(arguments, costed, rank, analysis);
  }
}

void print_several(const AnalyzeArguments& arguments, const std::vector<plan::CostedTrace>& traces) {
  const Table table = plan::comparison_table(traces);
  if (arguments.json || arguments.csv) {
    fmt::print("{}", table.text(arguments.json ? Table::Form::kJson : Table::Form::kCsv));
    return;
  }
  fmt::print(
      "{}. Times in ms; those of computing to overlap are of the run on the rank that computes "
      "longest\n\n{}",
      traces.front().costs->machine().name, table.text(Table::Form::kText));
  for (const plan::CostedTrace& costed : traces) {
    if (!costed.run)
      fmt::print("{}: no total, since it holds {} of {} ranks\n", costed.name, costed.trace->ranks.size(),
                 costed.trace->world_size);
    if (!costed.obstacles.empty())
      fmt::print("{}: no total, since no split fits: {}\n", costed.name, fmt::join(costed.obstacles, ", "));
  }
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

int64_t chosen_steps(const AnalyzeArguments& arguments, const plan::Trace& trace, const std::string& path) {
  const int64_t steps = arguments.num_inference_steps.value_or(trace.steps);
  if (steps < trace.traced_steps)
    usage_error(field("num_inference_steps"),
                "must be at least {}, the steps of the denoiser that {} holds, got {}", trace.traced_steps,
                path, steps);
  return steps;
}

void print_trace_hardware(const AnalyzeArguments& arguments) {
  const auto costs =
      std::make_shared<plan::OperationCosts>(plan::read_machine(plan::find_machine(arguments.machine)));
  std::vector<plan::Trace> traces;
  for (const std::string& path : arguments.traces) traces.push_back(plan::read_trace_file(path));
  std::optional<plan::Link> link;
  const bool has_messages = std::any_of(traces.begin(), traces.end(), [](const plan::Trace& trace) {
    return std::any_of(trace.ranks.begin(), trace.ranks.end(), plan::has_collectives);
  });
  if (has_messages) {
    link = chosen_link(arguments, costs->machine());
  } else if (arguments.link || arguments.link_gb_per_s) {
    usage_error(field(arguments.link ? "link" : "link_gb_per_s"),
                "is between devices, but no rank of {} sends anything; leave it out",
                fmt::join(arguments.traces, ", "));
  }
  std::vector<plan::CostedTrace> costed;
  for (size_t i = 0; i < traces.size(); ++i) {
    const std::string& path = arguments.traces[i];
    costed.push_back(
        plan::cost_trace(path, traces[i], chosen_steps(arguments, traces[i], path), costs, link));
  }
  if (costed.size() == 1) return print_one(arguments, costed.front());
  print_several(arguments, costed);
}

}  // namespace tessera::cli
