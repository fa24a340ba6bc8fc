#include <algorithm>

#include "cli/commands.h"
#include "cli/run_plan.h"
#include "core/error.h"
#include "core/text.h"
#include "job/traced_job.h"
#include "launch/signals.h"
#include "parallel/options.h"
#include "plan/find_machine.h"
#include "plan/planner/planner.h"
#include "plan/planner/server_plan.h"

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

namespace {

const Fields<PlanArguments>& plan_fields() {
  using P = PlanArguments;
  const FieldGroup machine = FieldGroup::kMachine;
  static const Fields<P> fields = {
      plain_field(&P::devices, {"devices", "Number of devices; a plan may leave some of them idle", machine,
                                "N", 1, 4096}),
      plain_field(&P::machine,
                  {"machine", "Machine file (JSON), or the name of a machine that ships", machine, "FILE"}),
      plain_field(&P::link,
                  {"link", "Kind of the link between devices [the first of the machine]", machine, "KIND"}),
      plain_field(
          &P::link_gb_per_s,
          {"link_gb_per_s", "Bandwidth of the link: the GB/s that a device can send [the machine file's]",
           machine, "N", 1e-6, 1e9}),
      plain_field(&P::memory_limit,
                  {"memory_limit", "GiB that a device may hold [its memory, if the machine file has it]",
                   machine, "GIB"}),
      plain_field(&P::max_staleness,
                  {"max_staleness",
                   "Allowed staleness of activations from other devices: none (exact results), any, or a "
                   "number of steps [any]",
                   FieldGroup::kDegrees, "none|any|N"}),
      plain_field(&P::images,
                  {"images",
                   "Number of images or videos in the request, which replicas divide among themselves "
                   "[1]",
                   FieldGroup::kDegrees, "N", 1}),
      plain_field(&P::requests_per_minute,
                  {"requests_per_minute",
                   "Divide the devices of a server into worlds that serve R requests a minute in the "
                   "least time",
                   FieldGroup::kMachine, "R"}),
      plain_field(&P::json, {"json", "Print JSON", FieldGroup::kOutput})};
  return fields;
}

constexpr double kBytesPerGib = 1024.0 * 1024 * 1024;
constexpr double kSecondsPerMinute = 60;

std::vector<plan::Link> links_of(const PlanArguments& arguments, const plan::Machine& machine,
                                 int64_t devices) {
  return plan::links_of_machine(machine, devices, arguments.link, arguments.link_gb_per_s);
}

OrderedJson list_json(const std::vector<plan::PlannedLayout>& layouts) {
  OrderedJson list = OrderedJson::array();
  for (const plan::PlannedLayout& each : layouts) list.push_back(plan::layout_json(each));
  return list;
}

void print_json(const OrderedJson& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

// "1024 x 1024 pixels, 20 steps", and the size after resolution binning if that changed it.
std::string request_text(const job::Job& job) {
  const engine::Settings& settings = job.settings;
  const bool is_alone = job.model.parts.size() == 1;  // a config.json
  std::string text = fmt::format("{} x {} pixels", settings.model_height, settings.model_width);
  const bool is_binned = settings.frames == 1 &&
                         (settings.model_height != settings.height || settings.model_width != settings.width);
  if (is_binned) text += fmt::format(" by resolution binning of {} x {}", settings.height, settings.width);
  if (is_alone) text += ", the denoiser alone";
  if (settings.frames > 1) text += fmt::format(", {}", counted(settings.all_frames(), "frame"));
  return fmt::format("{}, {}", text, counted(settings.steps, "step"));
}

void add_request(OrderedJson& json, const engine::Settings& settings) {
  json["height"] = settings.model_height;
  json["width"] = settings.model_width;
  json["frames"] = settings.all_frames();
  json["steps"] = settings.steps;
}

// Prints what one layout takes, named by its degrees.
void print_prediction(const PlanArguments& arguments, const job::Job& job, const plan::Machine& machine) {
  if (arguments.devices && *arguments.devices != job.ranks())
    usage_error(field("devices"), "is {}, but the degrees are for {}; leave it out, or the degrees",
                *arguments.devices, counted(job.ranks(), "device"));
  plan::Predictor predictor(job.settings, job.model, machine, links_of(arguments, machine, job.ranks()));
  const plan::PlannedLayout planned =
      plan::predict_wish(predictor, job.arguments.parallel, engine::workload(job.settings, job.model));
  if (arguments.json) {
    OrderedJson json = plan::layout_json(planned);
    json["machine"] = machine.name;
    json["basis"] = plan::basis_of(machine);
    add_request(json, job.settings);
    print_json(json);
    return;
  }
  fmt::print("{}: {}, {}, on {}. Times in ms, by {}\n\n{}", machine.name, job.model.family->class_name,
             request_text(job), counted(job.ranks(), "device"), plan::basis_of(machine),
             plan::plan_table({planned}).text(Table::Form::kText));
}

// `machine` set the limit if no option did.
[[noreturn]] void refuse_memory(const PlanArguments& arguments, const plan::Machine& machine,
                                const plan::PlannedLayout& nearest, double limit) {
  const std::string text =
      fmt::format("no layout fits into {:.3g} GiB a device; nearest is {} ({}), which needs {:.3g} GiB",
                  limit / kBytesPerGib, nearest.name,
                  nearest.wish.degrees() > 1 ? options_text(plan::options_json(nearest)) : "no options",
                  static_cast<double>(nearest.prediction.most_bytes()) / kBytesPerGib);
  if (!arguments.memory_limit) usage_error(machine.where, "'memory_gib': {}", text);
  usage_error(field("memory_limit"), "{}", text);
}

// Returns the options of a search. Options of a single layout that a search chooses itself are refused.
plan::PlanOptions plan_options(const PlanArguments& arguments, const plan::Machine& machine) {
  const parallel::ParallelOptions& given = arguments.run.parallel;
  const auto refuse = [](bool is_given, const char* name) {
    if (is_given)
      usage_error(field(name), "is chosen by the search; leave it out, or give degrees such as {} 4",
                  field("ulysses_degree"));
  };
  refuse(!given.rank_shares.empty(), "rank_shares");
  refuse(!given.attn_layer_num_for_pp.empty(), "attn_layer_num_for_pp");
  refuse(given.split_scheme.has_value(), "split_scheme");
  refuse(given.dynamic_sequence_parallel.has_value(), "dynamic_sequence_parallel");
  refuse(given.num_pipeline_patch.has_value(), "num_pipeline_patch");
  refuse(given.pipeline_patch_axis.has_value(), "pipeline_patch_axis");
  if (!arguments.devices)
    usage_error(field("devices"), "is needed: how many devices there are, or degrees such as {} 4",
                field("ulysses_degree"));
  plan::PlanOptions options{.devices = *arguments.devices,
                            .memory_bytes = machine.memory_bytes,
                            .allows_stale = allows_stale(arguments.max_staleness),
                            .fixed = given};
  if (arguments.memory_limit) options.memory_bytes = *arguments.memory_limit * kBytesPerGib;
  return options;
}

// Describes which layouts are among those shown.
std::string staleness_text(bool allows_stale) {
  if (!allows_stale) return "Only exact layouts";
  return spell(
      fmt::format("Exact layouts, and stale ones, which work with activations of the previous step; {} "
                  "none leaves these out, as {} {} auto does by default",
                  field("max_staleness"), "generate", field("parallel")),
      option_name);
}

void print_plan(const PlanArguments& arguments, const plan::PlanOptions& options, const job::Job& job,
                const plan::Machine& machine) {
  const plan::Plan found =
      plan::make_plan(job.settings, job.model, machine, links_of(arguments, machine, options.devices),
                      options, [] { return launch::interrupted(); });
  if (found.best.empty())
    refuse_memory(arguments, machine, *found.least_memory, options.memory_bytes.value_or(0));
  const std::vector<std::string> why = plan::reasons(found);
  if (arguments.json) {
    OrderedJson json = {{"machine", machine.name},
                        {"basis", plan::basis_of(machine)},
                        {"model", job.model.family->class_name},
                        {"devices", options.devices},
                        {"considered", found.considered},
                        {"costed", found.costed},
                        {"layouts", list_json(found.best)},
                        {"obvious", list_json(found.obvious)},
                        {"reasons", why}};
    add_request(json, job.settings);
    print_json(json);
    return;
  }
  fmt::print("{}: {}, {}, up to {}. The soonest of {}. Times in ms, by {}\n{}\n\n{}\n", machine.name,
             job.model.family->class_name, request_text(job), counted(options.devices, "device"),
             counted(found.considered, "layout"), plan::basis_of(machine),
             staleness_text(options.allows_stale), plan::plan_table(found.best).text(Table::Form::kText));
  for (const std::string& sentence : why) fmt::print("{}\n", sentence);
  if (found.best.front().wish.degrees() > 1)
    fmt::print("\n{}\n", options_text(plan::options_json(found.best.front())));
}

// "4 worlds of 16 devices"
std::string worlds_text(const plan::WorldsPlan& choice) {
  return fmt::format("{} of {}", counted(choice.worlds, "world"), counted(choice.devices, "device"));
}

std::string verdict(const plan::ServerPlan& found, double rate) {
  if (!found.best)
    return fmt::format("No choice can serve {:.4g} requests a minute: the most is {:.4g}.",
                       rate * kSecondsPerMinute, found.most_capacity() * kSecondsPerMinute);
  const plan::WorldsPlan& best = found.choices[*found.best];
  return fmt::format(
      "{} {} best, with the least p95: from its arrival to its end a request takes {:.4g} "
      "s on average, and 95 of 100 take at most {:.4g} s.",
      worlds_text(best), best.worlds == 1 ? "is" : "are", *best.mean_seconds, *best.p95_seconds);
}

// Prints how best to divide the devices into worlds for this many requests.
void print_server(const PlanArguments& arguments, const plan::PlanOptions& options, const job::Job& job,
                  const plan::Machine& machine) {
  const double rate = *arguments.requests_per_minute / kSecondsPerMinute;
  const plan::ServerPlan found =
      plan::make_server_plan(job.settings, job.model, machine, links_of(arguments, machine, options.devices),
                             options, rate, [] { return launch::interrupted(); });
  if (found.choices.empty())
    refuse_memory(arguments, machine, *found.least_memory, options.memory_bytes.value_or(0));
  const Table table = plan::server_table(found, rate);
  if (arguments.json) {
    OrderedJson choices = table.json();
    for (size_t i = 0; i < choices.size(); ++i) {
      choices[i]["capacity_per_minute"] = found.choices[i].capacity() * kSecondsPerMinute;
      choices[i]["options"] = plan::options_json(found.choices[i].planned);
      choices[i]["exact"] = found.choices[i].planned.prediction.is_exact;
    }
    OrderedJson json = {{"machine", machine.name},
                        {"basis", plan::basis_of(machine)},
                        {"model", job.model.family->class_name},
                        {"devices", options.devices},
                        {"requests_per_minute", *arguments.requests_per_minute},
                        {"most_per_minute", found.most_capacity() * kSecondsPerMinute},
                        {"best", found.best ? OrderedJson(*found.best) : OrderedJson()},
                        {"choices", std::move(choices)},
                        {"considered", found.considered},
                        {"costed", found.costed}};
    add_request(json, job.settings);
    print_json(json);
    return;
  }
  fmt::print("{}: {}, {}, {}, {:.4g} requests a minute. Times in ms, by {}\n{}\n\n{}\n{}\n", machine.name,
             job.model.family->class_name, request_text(job), counted(options.devices, "device"),
             *arguments.requests_per_minute, plan::basis_of(machine), staleness_text(options.allows_stale),
             table.text(Table::Form::kText), verdict(found, rate));
  if (found.best) fmt::print("\n{}\n", options_text(plan::options_json(found.choices[*found.best].planned)));
}

}  // namespace

void add_plan_options(FieldOptions& options) {
  FieldList fields = fields_of(plan_fields(), engine::request_fields());
  append(fields, job::run_fields(), [](const FieldInfo& info) { return info.group == FieldGroup::kModel; });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  options.add(std::move(fields), {"model", "devices", "machine", "height", "width", "num_inference_steps"});
}

void take_from_machine(PlanArguments& arguments, const plan::Machine& machine) {
  engine::Request& request = arguments.run.request;
  if (machine.device == "cuda" && request.device.is_cpu()) request.device = at::kCUDA;
  if (request.dtype) return;
  const std::string dtype = plan::nearest_dtype(machine, "bf16");
  request.dtype = dtype == "bf16" ? at::kBFloat16 : dtype == "fp16" ? at::kHalf : at::kFloat;
}

PlanArguments plan_arguments(const FieldOptions& options) {
  PlanArguments arguments = options.read(plan_fields());
  if (arguments.machine.empty())
    usage_error(field("machine"), "is needed: a machine file, or the name of a machine that ships");
  Json given = options.given(engine::request_fields());
  if (arguments.images && given.contains("num_images_per_prompt"))
    usage_error(field("images"), "and {} say the same; leave one out", field("num_images_per_prompt"));
  if (arguments.images) given["num_images_per_prompt"] = *arguments.images;
  given.update(options.given(parallel::parallel_fields()));
  given.update(options.given(job::run_fields()));
  arguments.run = job::make_arguments(std::move(given));
  return arguments;
}

void run_plan(const PlanArguments& given) {
  PlanArguments arguments = given;
  const plan::Machine machine = plan::read_named_machine(arguments.machine);
  take_from_machine(arguments, machine);
  allows_stale(arguments.max_staleness);
  if (arguments.memory_limit && !(*arguments.memory_limit > 0))
    usage_error(field("memory_limit"), "must be above 0, got {}", *arguments.memory_limit);
  if (arguments.requests_per_minute && !(*arguments.requests_per_minute > 0))
    usage_error(field("requests_per_minute"), "must be above 0, got {}", *arguments.requests_per_minute);
  // Degrees ask for a single layout.
  const parallel::ParallelOptions& wish = arguments.run.parallel;
  if (wish.degrees() > 1 || wish.nproc) {
    if (arguments.requests_per_minute)
      usage_error(field("requests_per_minute"), "is for a search of layouts; leave out the degrees");
    if (arguments.memory_limit)
      usage_error(field("memory_limit"), "is for a search of layouts; leave out the degrees");
    print_prediction(arguments, job::traced_job(arguments.run), machine);
    return;
  }
  const plan::PlanOptions options = plan_options(arguments, machine);
  // The wishes for the layouts do not apply to the single device that the job begins with.
  arguments.run.parallel = {};
  const job::Job job = job::traced_job(arguments.run);
  if (arguments.requests_per_minute) {
    print_server(arguments, options, job, machine);
  } else if (options.devices == 1) {
    print_prediction(arguments, job, machine);
  } else {
    print_plan(arguments, options, job, machine);
  }
}

}  // namespace tessera::cli
