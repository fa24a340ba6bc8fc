#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "core/error.h"
#include "core/json.h"
#include "core/table.h"
#include "core/text.h"
#include "job/outputs.h"
#include "plan/costed_trace.h"
#include "plan/find_machine.h"
#include "plan/hardware/analysis.h"
#include "plan/hardware/stdit_pair.h"
#include "plan/hardware_tables.h"
#include "plan/trace_report.h"
#include "plan/trace_views.h"

namespace tessera::cli {

const char* const kAnalyzeFooter =
    R"(Of a trace, that tessera trace has written (docs/trace.md):
  ops, sizes, comm, flops, memory   print a table of one rank, with sums of a steady step and of the run; take --rank,
                                    --json and --csv. All but memory also read a program in StableHLO (.mlir,
                                    docs/stablehlo.md), ours or another's
  report                            writes a page of all tables and of plots, of one trace or of several; takes --output,
                                    and --machine for times, with --link and --link-gb-per-s
hardware estimates how long the run of a trace takes on a machine: its steps, how its ranks compute and wait, and operator
by operator what it takes and which resource is the limit (docs/hardware.md); of several traces it compares the runs.
Without a trace, it estimates the transformer of Open-Sora 1.2 (STDiT3-XL) from the size of a video; --dies, --dtype,
--batch and the size of the video are for that alone. Machines that ship: a100, cpu-amx, cpu-avx2, cpu-avx512, h100,
h200, l20, l40, t4, tx8; fitted to measured runs: a100-nvlink, a100-pcie, l20-pcie, t4-pcie. Nothing is run.

Examples:
  tessera analyze comm trace.json --rank 1
  tessera analyze flops denoiser.mlir
  tessera analyze report ulysses.json ring.json --machine h100 -o report.html
  tessera analyze hardware trace.json --machine a100 --top 0
  tessera analyze hardware ulysses.json ring.json --machine l40
  tessera analyze hardware --machine h100 --num-frames 51 --height 480 --width 854
  tessera analyze hardware --machine tx8 --num-frames 204 --height 360 --width 640 --dies 4 --link-gb-per-s 50)";

namespace {

const Fields<AnalyzeArguments>& analyze_fields() {
  using A = AnalyzeArguments;
  const FieldGroup machine = FieldGroup::kMachine, video = FieldGroup::kVideo, output = FieldGroup::kOutput;
  static const Fields<A> table = {
      plain_field(&A::what, {"what", fmt::format("{}", fmt::join(analyze_subjects(), ", ")), output}),
      plain_field(&A::traces, {"traces", "Files of traces", output, "FILE"}),
      plain_field(&A::machine,
                  {"machine", "Machine file (JSON), or the name of a machine that ships", machine, "FILE"}),
      plain_field(&A::dtype, {"dtype",
                              "Dtype of weights and activations [bf16, fp16 or fp32, what the machine has]",
                              machine,
                              "NAME",
                              {},
                              {},
                              {"fp32", "fp16", "bf16", "fp8"}}),
      plain_field(&A::dies, {"dies", "Devices that divide the tokens [1]", machine, "N", 1, 4096}),
      plain_field(&A::link, {"link", "Link between devices, by its kind in the machine file [the first]",
                             machine, "KIND"}),
      plain_field(
          &A::link_gb_per_s,
          {"link_gb_per_s", "Bandwidth of the link: the GB/s that a device can send [the machine file's]",
           machine, "N", 1e-6, 1e9}),
      plain_field(&A::num_frames, {"num_frames", "Frames of the video", video, "N", 1, 10000}),
      plain_field(&A::height, {"height", "Height of the video", video, "PIXELS", 16, 8192}),
      plain_field(&A::width, {"width", "Width of the video", video, "PIXELS", 16, 8192}),
      plain_field(&A::batch,
                  {"batch", "Samples in a step, 2 for one prompt with guidance [2]", video, "N", 1, 64}),
      plain_field(&A::num_inference_steps,
                  {"num_inference_steps",
                   "Steps; for samplers that run the denoiser several times per step, the number of "
                   "these runs [those of the trace, or 30]",
                   video, "N", 1, 100000}),
      plain_field(
          &A::rank,
          {"rank", "Rank to show [the first in the trace; for hardware, the one that computes longest]",
           output, "N", 0}),
      plain_field(&A::top,
                  {"top", "Number of rows in hardware's table of operators, 0 for all [15]", output, "N", 0}),
      plain_field(&A::output, {"output", "File of the report [report.html]", output, "FILE"}),
      plain_field(&A::json, {"json", "Print JSON", output}),
      plain_field(&A::csv, {"csv", "Print CSV", output})};
  return table;
}

// The options that make sense for what is analyzed.
std::vector<std::string> options_of(const AnalyzeArguments& arguments) {
  if (arguments.what == "report") {
    if (arguments.machine.empty()) return {"output"};
    return {"machine", "output", "link", "link_gb_per_s"};
  }
  if (arguments.what != "hardware") return {"rank", "json", "csv"};
  if (arguments.traces.size() > 1)
    return {"machine", "num_inference_steps", "link", "link_gb_per_s", "json", "csv"};
  if (!arguments.traces.empty()) {
    std::vector<std::string> options = {
        "machine", "rank", "num_inference_steps", "link", "link_gb_per_s", "top", "json", "csv"};
    if (arguments.json || arguments.csv) std::erase(options, "top");
    return options;
  }
  return {"machine", "dtype", "dies",       "link",  "link_gb_per_s",
          "height",  "width", "num_frames", "batch", "num_inference_steps",
          "json",    "csv"};
}

void require_operands(const AnalyzeArguments& arguments, const Json& given) {
  const std::string& what = arguments.what;
  const size_t traces = arguments.traces.size();
  const bool is_hardware = what == "hardware";
  if (given.contains("machine") && arguments.machine.empty())
    usage_error(field("machine"), "is empty; name a file, or a machine that ships");
  const std::vector<std::string> allowed = options_of(arguments);
  for (const auto& [name, value] : given.items()) {
    const bool is_operand = name == "what" || name == "traces";
    if (!is_operand && std::find(allowed.begin(), allowed.end(), name) == allowed.end())
      usage_error(field(name), "does not go with {}{}", what,
                  name == "top" && is_hardware && traces == 1    ? " as JSON or CSV, which have all rows"
                  : is_hardware && traces > 1                    ? " of several traces"
                  : is_hardware && traces > 0                    ? " of a trace"
                  : what == "report" && name.starts_with("link") ? " without a machine"
                                                                 : "");
  }
  if (traces > 1 && what != "report" && !is_hardware)
    usage_error("analyze", "{} takes one trace, got {}", what, traces);
  if (is_hardware) {
    for (const char* const needed : {"machine", "num_frames", "height", "width"}) {
      const bool is_needed = traces == 0 || std::string_view(needed) == "machine";
      if (is_needed && !given.contains(needed))
        usage_error(field(needed), "is needed{}; see tessera analyze --help",
                    std::string_view(needed) == "machine" ? "" : " without a trace");
    }
  } else if (traces == 0) {
    usage_error("analyze", "{} needs the file of a trace; tessera trace makes one", what);
  }
}

// Returns the link between devices that the arguments choose, which has a bandwidth. Throws Error(kInput) if
// the machine has none.
plan::Link chosen_link(const AnalyzeArguments& arguments, const plan::Machine& machine) {
  plan::Link link = plan::find_link(machine, arguments.link);
  if (arguments.link_gb_per_s) link.bandwidth = *arguments.link_gb_per_s * 1e9;
  if (!link.bandwidth)
    usage_error(field("link_gb_per_s"), "is needed: {} does not give the bandwidth of its link '{}'",
                machine.where, link.kind);
  return link;
}

// Returns the steps of the estimated run: those of the arguments, or of the trace. Throws Error(kUsage) for
// fewer than were traced.
int64_t chosen_steps(const AnalyzeArguments& arguments, const plan::Trace& trace, const std::string& path) {
  const int64_t steps = arguments.num_inference_steps.value_or(trace.steps);
  if (steps < trace.traced_steps)
    usage_error(field("num_inference_steps"),
                "must be at least {}, the steps of the denoiser that {} holds, got {}", trace.traced_steps,
                path, steps);
  return steps;
}

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
  return times == "1.00" ? "All ranks compute equally long, within 1 %"
                         : fmt::format("Rank {} computes longest, {} times the mean of all",
                                       costed.busiest().rank, times);
}

// Prints the answer: how long the run takes, and what takes the time.
void print_run(const plan::CostedTrace& costed) {
  const plan::Trace& trace = *costed.trace;
  if (!costed.run) {
    fmt::print(
        "No total: the trace holds {} of {} ranks, so it is unknown how long they wait for "
        "each other\n\n",
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
      "{}. Times in ms; the computing to overlap is counted over the run, on the rank that computes "
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

// Prints how long the ranks of traces take on a machine: the analysis of one trace, or a table of several.
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

// What is analyzed, and where.
struct Subject {
  plan::Machine machine;
  std::string dtype;
  plan::Video video;
  plan::TokenGrid grid;
  plan::StditSizes sizes;
  std::optional<plan::Exchange> exchange;
};

constexpr int64_t kSteps = 30;  // the default of Open-Sora 1.2

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
  // A report assigns messages to the first link.
  if (arguments.link || arguments.link_gb_per_s) machine->links = {chosen_link(arguments, *machine)};
  if (job::write_result(path, plan::report_html(traces, machine))) fmt::print("{}\n", path);
}

}  // namespace

std::vector<std::string> analyze_subjects() {
  std::vector<std::string> all = plan::trace_view_names();
  all.insert(all.end(), {"report", "hardware"});
  return all;
}

void add_analyze_options(FieldOptions& options) {
  const Fields<AnalyzeArguments>& fields = analyze_fields();
  for (size_t i = 0; i < 2; ++i) options.add_operand(fields[i]);
  FieldList named = fields_of(fields);
  named.erase(named.begin(), named.begin() + 2);
  options.add(std::move(named));
}

AnalyzeArguments analyze_arguments(const FieldOptions& options) {
  const std::vector<std::string> known = analyze_subjects();
  const Json given = options.given(analyze_fields());
  if (!given.contains("what")) usage_error("analyze", "say what to analyze: {}", fmt::join(known, ", "));
  const auto what = given["what"].get<std::string>();
  if (std::find(known.begin(), known.end(), what) == known.end())
    usage_error("analyze", "cannot analyze '{}'; there is {}", printable(what), fmt::join(known, ", "));
  const AnalyzeArguments arguments = read_fields(analyze_fields(), given);
  require_operands(arguments, given);
  if (arguments.json && arguments.csv) usage_error("--csv", "and --json are two forms; leave one out");
  if (arguments.traces.empty() && arguments.dies == 1 && (arguments.link || arguments.link_gb_per_s))
    usage_error(field(arguments.link ? "link" : "link_gb_per_s"), "is between devices: give {} too",
                field("dies"));
  return arguments;
}

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
