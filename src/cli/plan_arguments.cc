#include "cli/plan_arguments.h"

#include <charconv>

#include "core/error.h"
#include "core/text.h"
#include "engine/request.h"
#include "parallel/options.h"

namespace tessera::cli {

const char* const kPlanFooter =
    R"(Finds the layouts in which devices of a machine finish a request soonest, from shapes alone, and says why. With
degrees (--ulysses-degree 4 ...) it tells what that layout takes instead; with --requests-per-minute, how many worlds of how many
devices serve such requests best. Machines come from docs/hardware.md and
docs/planning.md, which says how far off the figures are. --model may name the config.json of a denoiser alone.

Examples:
  tessera plan --model path/to/PixArt-Sigma-XL-2-1024-MS --devices 8 --machine l40 --height 1024 --width 1024
  tessera plan --model path/to/OpenSora/transformer/config.json --num-frames 51 --resolution 720p --devices 4 --machine h100
  tessera plan --model path/to/PixArt-Sigma-XL-2-1024-MS --machine a100 --link pcie --use-cfg-parallel --ulysses-degree 2 --json
  tessera plan --model path/to/PixArt-Sigma-XL-2-1024-MS --devices 64 --machine l40-pcie --requests-per-minute 90)";

const Fields<PlanArguments>& plan_fields() {
  using P = PlanArguments;
  const FieldGroup machine = FieldGroup::kMachine;
  static const Fields<P> fields = {
      plain_field(&P::devices, {"devices", "Number of devices, of which a plan may leave some idle", machine,
                                "N", 1, 4096}),
      plain_field(&P::machine,
                  {"machine", "Machine file (JSON), or the name of a machine that ships", machine, "FILE"}),
      plain_field(&P::link,
                  {"link", "Kind of the link between devices [the first of the machine]", machine, "KIND"}),
      plain_field(
          &P::link_gb_per_s,
          {"link_gb_per_s", "10^9 bytes per second that a device sends [those of the link]", machine, "GB"}),
      plain_field(
          &P::memory_limit,
          {"memory_limit", "GiB that a device may hold [its memory, if the machine tells]", machine, "GIB"}),
      plain_field(
          &P::max_staleness,
          {"max_staleness",
           "How old the activations of other devices may be that a layout works with: none (exact results), "
           "any, or a number of steps [any]",
           FieldGroup::kDegrees, "none|any|N"}),
      plain_field(&P::images, {"images", "Images or videos of the request; replicas divide them [1]",
                               FieldGroup::kDegrees, "N", 1}),
      plain_field(&P::requests_per_minute,
                  {"requests_per_minute",
                   "Deal the devices of a server to worlds, so that so many requests take the least time",
                   FieldGroup::kMachine, "R"}),
      plain_field(&P::json, {"json", "Print JSON", FieldGroup::kOutput})};
  return fields;
}

void add_plan_options(FieldOptions& options) {
  FieldList fields;
  const auto all = [](const FieldInfo&) { return true; };
  append(fields, plan_fields(), all);
  append(fields, job::run_fields(), [](const FieldInfo& info) { return info.group == FieldGroup::kModel; });
  append(fields, engine::request_fields(), all);
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  options.add(std::move(fields), {"model", "devices", "machine", "height", "width", "num_inference_steps"});
}

bool allows_stale(const std::string& text) {
  if (text == "none") return false;
  if (text == "any") return true;
  int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0)
    usage_error(field("max_staleness"), "must be none, any or a number of steps, got '{}'", printable(text));
  return steps >= 1;  // no layout works with anything older than one step
}

void take_from_machine(PlanArguments& arguments, const plan::Machine& machine) {
  engine::Request& request = arguments.run.request;
  if (machine.device == "cuda" && request.device.is_cpu()) request.device = at::kCUDA;
  if (request.dtype) return;
  const std::string dtype = plan::nearest_dtype(machine, "bf16");
  request.dtype = dtype == "bf16" ? at::kBFloat16 : dtype == "fp16" ? at::kHalf : at::kFloat;
}

PlanArguments plan_arguments(const FieldOptions& options, const Values& values) {
  PlanArguments arguments = options.read(plan_fields(), values);
  if (arguments.machine.empty())
    usage_error(field("machine"), "is needed: a machine file, or the name of a machine that ships");
  Json given = options.given(engine::request_fields(), values);
  if (arguments.images && given.contains("num_images_per_prompt"))
    usage_error(field("images"), "and {} say the same; leave one out", field("num_images_per_prompt"));
  if (arguments.images) given["num_images_per_prompt"] = *arguments.images;
  given.update(options.given(parallel::parallel_fields(), values));
  Json run = options.given(job::run_fields(), values);
  for (const FieldInfo& own : plan_fields()) run.erase(own.name);
  given.update(run);
  arguments.run = job::make_arguments(std::move(given));
  return arguments;
}

}  // namespace tessera::cli
