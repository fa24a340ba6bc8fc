#include "cli/analyze_arguments.h"

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/nearest_word.h"
#include "core/user_text.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter =
    R"(Estimates how long the transformer of Open-Sora 1.2 (STDiT3-XL) takes on a machine, operator by operator: how each
is split over the tiles, what that computes and moves, and which resource is the limit. Nothing is run.
docs/hardware.md has the formulas and the keys of machine files. Machines that ship: a100, cpu-amx, cpu-avx2, cpu-avx512,
h100, h200, l20, l40, t4, tx8.

Examples:
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
      plain_field(&A::num_inference_steps, {"num_inference_steps", "Steps [30]", video, "N", 1, 100000}),
      plain_field(
          &A::as_published,
          {"as_published", "Use the published formulas and list of operators with their errors", output}),
      plain_field(&A::preset_splits,
                  {"preset_splits", "Use the published fixed tiles instead of searching the best", output}),
      plain_field(&A::json, {"json", "Print JSON", output})};
  return table;
}

FieldList all_fields() {
  FieldList list;
  append(list, fields(), [](const FieldInfo&) { return true; });
  return list;
}

}  // namespace

AnalyzeOptions::AnalyzeOptions(CLI::App& app) : options_(app) {
  app.footer(kFooter);
  app.add_option("WHAT", view_, "What to analyze: hardware")->type_name("");
  options_.add(all_fields());
}

AnalyzeArguments AnalyzeOptions::read(const Values& values) const {
  const std::string view = view_ ? values.at(*view_) : "";
  if (view != "hardware")
    usage_error("analyze", "{}; there is: tessera analyze hardware",
                view.empty() ? "say what to analyze" : fmt::format("cannot analyze '{}'", printable(view)));
  const Json given = options_.given(fields(), values);
  for (const char* const needed : {"machine", "num_frames", "height", "width"}) {
    if (!given.contains(needed)) usage_error(field(needed), "is needed; see tessera analyze --help");
  }
  const AnalyzeArguments arguments = read_fields(fields(), given);
  if (arguments.dies == 1 && (arguments.link || arguments.link_gb_per_s))
    usage_error(field(arguments.link ? "link" : "link_gb_per_s"), "is between devices: give {} too",
                field("dies"));
  return arguments;
}

}  // namespace tessera::cli
