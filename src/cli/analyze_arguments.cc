#include "cli/analyze_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "plan/trace_views.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter =
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

const Fields<AnalyzeArguments>& fields() {
  using A = AnalyzeArguments;
  const FieldGroup machine = FieldGroup::kMachine, video = FieldGroup::kVideo, output = FieldGroup::kOutput;
  static const Fields<A> table = {
      plain_field(&A::machine,
                  {"machine", "Machine file (JSON), or the name of a machine that ships", machine, "FILE"}),
      plain_field(&A::dtype, {"dtype",
                              "Dtype of weights and activations [bf16, fp16 or fp32, what the machine has]",
                              machine,
                              "NAME",
                              {},
                              {},
                              {"fp32", "fp16", "bf16", "fp8"}}),
      plain_field(&A::dies, {"dies", "Devices among which tokens are divided [1]", machine, "N", 1, 4096}),
      plain_field(&A::link, {"link", "Link between devices, by its kind in the machine file [the first]",
                             machine, "KIND"}),
      plain_field(&A::link_gb_per_s,
                  {"link_gb_per_s", "Bandwidth of the link in GB/s that a device sends [the machine file's]",
                   machine, "N", 1e-6, 1e9}),
      plain_field(&A::num_frames, {"num_frames", "Frames of the video", video, "N", 1, 10000}),
      plain_field(&A::height, {"height", "Height of the video", video, "PIXELS", 16, 8192}),
      plain_field(&A::width, {"width", "Width of the video", video, "PIXELS", 16, 8192}),
      plain_field(&A::batch,
                  {"batch", "Samples in a step, 2 for one prompt with guidance [2]", video, "N", 1, 64}),
      plain_field(&A::num_inference_steps,
                  {"num_inference_steps",
                   "Steps, of the denoiser where samplers have more [those of the trace, or 30]", video, "N",
                   1, 100000}),
      plain_field(
          &A::rank,
          {"rank", "Rank of the table [the first in the trace; of hardware, the one that computes longest]",
           output, "N", 0}),
      plain_field(&A::top,
                  {"top", "Most rows of hardware's table of operators, 0 for all [15]", output, "N", 0}),
      plain_field(&A::output, {"output", "File of the report [report.html]", output, "FILE"}),
      plain_field(&A::json, {"json", "Print JSON", output}),
      plain_field(&A::csv, {"csv", "Print CSV", output})};
  return table;
}

FieldList all_fields() {
  FieldList list;
  append(list, fields(), [](const FieldInfo&) { return true; });
  return list;
}

std::vector<std::string> subjects() {
  std::vector<std::string> all = plan::trace_view_names();
  all.insert(all.end(), {"report", "hardware"});
  return all;
}

// The options that go with what is analyzed.
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
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end())
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

}  // namespace

AnalyzeOptions::AnalyzeOptions(CLI::App& app) : options_(app) {
  app.footer(kFooter);
  app.add_option("WHAT", operands_, fmt::format("{}; then the files of traces", fmt::join(subjects(), ", ")))
      ->type_name("");
  options_.add(all_fields());
}

CommandCompletion AnalyzeOptions::completion() const {
  return {.choices = options_.choices(), .first = {.words = subjects()}, .others = {.files = true}};
}

AnalyzeArguments AnalyzeOptions::read(const Values& values) const {
  std::vector<std::string> operands;
  for (const size_t place : operands_) operands.push_back(values.at(place));
  const std::vector<std::string> known = subjects();
  if (operands.empty()) usage_error("analyze", "say what to analyze: {}", fmt::join(known, ", "));
  if (std::find(known.begin(), known.end(), operands[0]) == known.end())
    usage_error("analyze", "cannot analyze '{}'; there is {}", printable(operands[0]),
                fmt::join(known, ", "));
  const Json given = options_.given(fields(), values);
  AnalyzeArguments arguments = read_fields(fields(), given);
  arguments.what = operands[0];
  arguments.traces.assign(operands.begin() + 1, operands.end());
  require_operands(arguments, given);
  if (arguments.json && arguments.csv) usage_error("--csv", "and --json are two forms; leave one out");
  if (arguments.traces.empty() && arguments.dies == 1 && (arguments.link || arguments.link_gb_per_s))
    usage_error(field(arguments.link ? "link" : "link_gb_per_s"), "is between devices: give {} too",
                field("dies"));
  return arguments;
}

}  // namespace tessera::cli
