#include "cli/analyze_command.h"

#include <fmt/ranges.h>

#include "cli/trace_hardware.h"
#include "core/error.h"
#include "core/json.h"
#include "core/table.h"
#include "core/text.h"
#include "job/outputs.h"
#include "plan/find_machine.h"
#include "plan/hardware/analysis.h"
#include "plan/hardware/stdit_pair.h"
#include "plan/hardware_tables.h"
#include "plan/trace_report.h"
#include "plan/trace_views.h"

namespace tessera::cli {
namespace {

// What is analyzed, and where.
struct Subject {
  plan::Machine machine;
  std::string dtype;
  plan::Video video;
  plan::TokenGrid grid;
  plan::StditSizes sizes;
  std::optional<plan::Exchange> exchange;
};

constexpr int64_t kSteps = 30;  // of Open-Sora 1.2 by default

std::string choose_dtype(const plan::Machine& machine, const std::optional<std::string>& asked) {
  if (asked) return *asked;
  for (const char* const dtype : {"bf16", "fp16", "fp32"}) {
    if (machine.gemm_rates.contains(dtype)) return dtype;
  }
  return machine.gemm_rates.begin()->first;
}

plan::Exchange make_exchange(const AnalyzeArguments& arguments, const Subject& subject) {
  const plan::Link link = chosen_link(arguments, subject.machine);
  return {.bytes = plan::exchanged_bytes(subject.video, subject.grid, arguments.dies,
                                         plan::dtype_bytes(subject.dtype)),
          .messages = plan::kExchanges,
          .bandwidth = *link.bandwidth,
          .latency = link.latency};
}

Subject make_subject(const AnalyzeArguments& arguments) {
  Subject subject;
  subject.machine = plan::read_machine(plan::find_machine(arguments.machine));
  subject.dtype = choose_dtype(subject.machine, arguments.dtype);
  subject.video = {arguments.num_frames, arguments.height, arguments.width, arguments.batch};
  subject.grid = plan::token_grid(subject.video);
  subject.sizes = plan::stdit_xl_sizes(subject.video, subject.grid, arguments.dies);
  if (arguments.dies > 1) subject.exchange = make_exchange(arguments, subject);
  return subject;
}

OrderedJson operator_json(const plan::MappedOperator& mapped) {
  const auto& [each, mapping] = mapped;
  OrderedJson json = {{"name", each.name},
                      {"kind", plan::kind_name(each.work)},
                      {"shape", plan::shape_text(each.work)},
                      {"count", each.count}};
  if (!mapping.fits()) {
    json["obstacle"] = mapping.obstacle;
    return json;
  }
  json["split"] = mapping.split;
  json["compute_seconds"] = mapping.compute;
  json["communication_seconds"] = mapping.communication();
  json["dram_seconds"] = mapping.dram;
  json["noc_seconds"] = mapping.noc;
  json["latency_seconds"] = mapping.latency;
  json["utilization"] = mapping.utilization;
  json["bound"] = plan::roof_name(mapping.roof);
  return json;
}

OrderedJson analysis_json(const AnalyzeArguments& arguments, const Subject& subject,
                          const plan::Analysis& analysis) {
  const int64_t steps = arguments.num_inference_steps.value_or(kSteps);
  OrderedJson operators = OrderedJson::array();
  for (const plan::MappedOperator& mapped : analysis.operators) operators.push_back(operator_json(mapped));
  return {
      {"machine", subject.machine.name},
      {"dtype", subject.dtype},
      {"num_frames", arguments.num_frames},
      {"height", arguments.height},
      {"width", arguments.width},
      {"batch", arguments.batch},
      {"dies", arguments.dies},
      {"latent_frames", subject.grid.frames},
      {"tokens_per_frame", subject.grid.of_frame()},
      {"operators", std::move(operators)},
      {"without", analysis.obstacles},
      {"pair_seconds", analysis.list_seconds},
      {"exchange_bytes", whole_number(subject.exchange ? subject.exchange->bytes : 0)},
      {"exchange_seconds", analysis.exchange_seconds},
      {"pairs", subject.sizes.pairs},
      {"num_inference_steps", steps},
      {"total_seconds", analysis.obstacles.empty() ? OrderedJson(analysis.total(subject.sizes.pairs * steps))
                                                   : OrderedJson()}};
}

void print_analysis(const AnalyzeArguments& arguments, const Subject& subject,
                    const plan::Analysis& analysis) {
  const int64_t steps = arguments.num_inference_steps.value_or(kSteps);
  fmt::print("{}, {}: STDiT3-XL, {} frames of {} x {}, {} samples of {} x {} tokens{}\n\n",
             subject.machine.name, subject.dtype, arguments.num_frames, arguments.height, arguments.width,
             arguments.batch, subject.grid.frames, subject.grid.of_frame(),
             arguments.dies > 1 ? fmt::format("; the busiest of {} devices", arguments.dies) : "");
  fmt::print("{}", plan::operators_table(analysis).text(Table::Form::kText));
  fmt::print(
      "\nTimes of one run in ms. A pair of blocks: {} ms{}; {} pairs x {} steps: {} s{}\n",
      milliseconds_text(analysis.list_seconds),
      subject.exchange
          ? fmt::format(", and {} ms between devices", milliseconds_text(analysis.exchange_seconds))
          : "",
      subject.sizes.pairs, steps, seconds_text(analysis.total(subject.sizes.pairs * steps)),
      analysis.obstacles.empty()
          ? ""
          : fmt::format(" without {}", counted(static_cast<int64_t>(analysis.obstacles.size()), "operator")));
  if (const int64_t idle = arguments.dies - subject.grid.frames; idle > 0)
    fmt::print("{} of the {} devices {} no frame: the video has {}\n", idle, arguments.dies,
               idle == 1 ? "has" : "have", counted(subject.grid.frames, "latent frame"));
  if (!analysis.obstacles.empty())
    fmt::print("Not counted, since no split fits: {}\n", fmt::join(analysis.obstacles, ", "));
}

void write_report(const AnalyzeArguments& arguments) {
  const std::string path = arguments.output.value_or("report.html");
  job::require_result_path("--output", path);
  std::vector<plan::NamedTrace> traces;
  for (const std::string& file : arguments.traces) {
    if (job::same_file(file, path)) usage_error("--output", "'{}' is a trace that the report reads", path);
    traces.push_back({file, plan::read_trace_file(file)});
  }
  std::optional<plan::Machine> machine;
  if (!arguments.machine.empty()) machine = plan::read_machine(plan::find_machine(arguments.machine));
  // A report draws messages over the first link.
  if (arguments.link || arguments.link_gb_per_s) machine->links = {chosen_link(arguments, *machine)};
  if (job::write_result(path, plan::report_html(traces, machine))) fmt::print("{}\n", path);
}

}  // namespace

void run_analyze(const AnalyzeArguments& arguments) {
  if (arguments.what == "report") return write_report(arguments);
  if (arguments.what == "hardware" && !arguments.traces.empty()) return print_trace_hardware(arguments);
  if (arguments.what != "hardware") {
    const Table::Form form = arguments.json  ? Table::Form::kJson
                             : arguments.csv ? Table::Form::kCsv
                                             : Table::Form::kText;
    return plan::print_trace_view(arguments.what, arguments.traces.front(), arguments.rank, form);
  }
  const Subject subject = make_subject(arguments);
  const plan::Analysis analysis =
      plan::analyze(plan::stdit_pair(subject.sizes), subject.machine, subject.dtype, subject.exchange);
  if (arguments.json) {
    fmt::print("{}\n", analysis_json(arguments, subject, analysis).dump());
  } else if (arguments.csv) {
    fmt::print("{}", plan::operators_table(analysis).text(Table::Form::kCsv));
  } else {
    print_analysis(arguments, subject, analysis);
  }
}

}  // namespace tessera::cli
