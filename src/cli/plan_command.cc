#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "cli/field_options.h"
#include "cli/plan_arguments.h"
#include "cli/traced_job.h"
#include "core/error.h"
#include "core/text.h"
#include "launch/signals.h"
#include "parallel/mesh.h"
#include "plan/find_machine.h"
#include "plan/planner/planner.h"

namespace tessera::cli {
namespace {

constexpr double kBytesPerGib = 1024.0 * 1024 * 1024;

bool allows_stale(const std::string& text) {
  if (text == "none") return false;
  if (text == "any") return true;
  int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0)
    usage_error(field("max_staleness"), "must be none, any or a number of steps, got '{}'", printable(text));
  return steps >= 1;  // no layout works with anything older than one step
}

// The link that is chosen, and those after it, which join devices further apart.
std::vector<plan::Link> links_from(const PlanArguments& arguments, const plan::Machine& machine,
                                   int64_t devices) {
  if (devices == 1 && machine.links.empty()) return {};
  const plan::Link& chosen = plan::find_link(machine, arguments.link);
  std::vector<plan::Link> links;
  for (const plan::Link& link : machine.links) {
    if (&link == &chosen || !links.empty()) links.push_back(link);
  }
  if (arguments.link_gb_per_s) links.front().bandwidth = *arguments.link_gb_per_s * 1e9;
  for (const plan::Link& link : links) {
    if (!link.bandwidth && link.measured.empty() && devices > 1)
      usage_error(field("link_gb_per_s"), "is needed: {} does not tell the bandwidth of its link '{}'",
                  machine.where, link.kind);
  }
  return links;
}

OrderedJson options_json(const plan::PlannedLayout& planned) {
  const parallel::ParallelOptions& wish = planned.wish;
  OrderedJson options = OrderedJson::object();
  if (wish.use_cfg_parallel) options["use_cfg_parallel"] = true;
  for (const parallel::Degree& degree : parallel::kDegrees) {
    if (wish.*degree.value > 1) options[degree.name] = wish.*degree.value;
  }
  if (!wish.rank_shares.empty()) {
    std::vector<std::string> shares;
    for (const double share : wish.rank_shares) shares.push_back(fmt::format("{:.4g}", share));
    options["rank_shares"] = fmt::format("{}", fmt::join(shares, ","));
  }
  if (wish.split_scheme == parallel::SplitScheme::k2d) options["split_scheme"] = "2d";
  if (wish.dynamic_sequence_parallel) options["dynamic_sequence_parallel"] = *wish.dynamic_sequence_parallel;
  if (wish.num_pipeline_patch) options["num_pipeline_patch"] = *wish.num_pipeline_patch;
  if (wish.pipeline_patch_axis)
    options["pipeline_patch_axis"] = *wish.pipeline_patch_axis == parallel::GridAxis::kRows ? "h" : "t";
  return options;
}

// "--use-cfg-parallel --ulysses-degree 4"
std::string options_text(const plan::PlannedLayout& planned) {
  std::vector<std::string> words;
  const OrderedJson options = options_json(planned);
  for (const auto& [name, value] : options.items()) {
    if (value.is_boolean()) {
      words.push_back(option_name(name, value.get<bool>()));
    } else {
      words.push_back(fmt::format("{} {}", option_name(name),
                                  value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return fmt::format("{}", fmt::join(words, " "));
}

OrderedJson layout_json(const plan::PlannedLayout& planned) {
  const plan::Prediction& prediction = planned.prediction;
  const parallel::Mesh mesh(planned.layout.sizes);
  OrderedJson peaks = OrderedJson::array();
  const bool by_rank = static_cast<int64_t>(prediction.peak_bytes.size()) == mesh.world_size();
  for (int64_t rank = 0; rank < mesh.world_size() && !prediction.peak_bytes.empty(); ++rank) {
    const int64_t stage = mesh.coordinates(rank)[parallel::Axis::kPipeline];
    peaks.push_back(prediction.peak_bytes[static_cast<size_t>(by_rank ? rank : stage)]);
  }
  return {{"layout", planned.name},
          {"options", options_json(planned)},
          {"devices", mesh.world_size()},
          {"seconds", prediction.seconds},
          {"step_seconds", prediction.step_seconds},
          {"encode_seconds", prediction.encode},
          {"denoise_seconds", prediction.denoise},
          {"decode_seconds", prediction.decode},
          {"step_computing_seconds", prediction.step.computing},
          {"step_waiting_seconds", prediction.step.waiting},
          {"step_hidden_seconds", prediction.step.hidden},
          {"imbalance", prediction.imbalance},
          {"step_sent_bytes", prediction.sent},
          {"peak_bytes", std::move(peaks)},
          {"exact", prediction.is_exact}};
}

OrderedJson list_json(const std::vector<plan::PlannedLayout>& layouts) {
  OrderedJson list = OrderedJson::array();
  for (const plan::PlannedLayout& each : layouts) list.push_back(layout_json(each));
  return list;
}

// What the times rest on.
std::string basis_of(const plan::Machine& machine) {
  const auto found = machine.text.find("calibration");
  if (found == machine.text.end()) return "the rates of a data sheet, which kernels do not reach";
  const auto rows = found->find("rows");
  return rows == found->end()
             ? "measurements of the machine"
             : fmt::format("a fit to {}", counted(static_cast<int64_t>(rows->size()), "measured run"));
}

void print_json(const OrderedJson& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

// What one layout takes, which the degrees name.
void print_prediction(const PlanArguments& arguments, const job::Job& job, const plan::Machine& machine) {
  if (arguments.devices && *arguments.devices != job.ranks())
    usage_error(field("devices"), "is {}, but the degrees are for {}; leave it out, or the degrees",
                *arguments.devices, counted(job.ranks(), "device"));
  plan::Predictor predictor(job.settings, job.model, machine, links_from(arguments, machine, job.ranks()));
  const plan::PlannedLayout planned =
      plan::predict_wish(predictor, job.arguments.parallel, engine::workload(job.settings, job.model));
  if (arguments.json) {
    OrderedJson json = layout_json(planned);
    json["machine"] = machine.name;
    json["basis"] = basis_of(machine);
    print_json(json);
    return;
  }
  fmt::print("{}: {} on {}. Times in ms, by {}\n\n{}", machine.name, job.model.family->class_name,
             counted(job.ranks(), "device"), basis_of(machine),
             plan::plan_table({planned}).text(Table::Form::kText));
}

[[noreturn]] void refuse_memory(const plan::Plan& plan, double limit) {
  const plan::PlannedLayout& nearest = *plan.least_memory;
  usage_error(field("memory_limit"),
              "no layout fits into {:.3g} GiB a device; nearest is {} ({}), which needs {:.3g} GiB",
              limit / kBytesPerGib, nearest.name,
              nearest.wish.degrees() > 1 ? options_text(nearest) : "no options",
              static_cast<double>(nearest.prediction.most_bytes()) / kBytesPerGib);
}

void print_plan(const PlanArguments& arguments, const job::Job& job, const plan::Machine& machine) {
  if (!arguments.devices)
    usage_error(field("devices"), "is needed: how many devices there are, or degrees such as {} 4",
                field("ulysses_degree"));
  plan::PlanOptions options{.devices = *arguments.devices,
                            .memory_bytes = {},
                            .allows_stale = allows_stale(arguments.max_staleness)};
  if (arguments.memory_limit) options.memory_bytes = *arguments.memory_limit * kBytesPerGib;
  const plan::Plan found =
      plan::make_plan(job.settings, job.model, machine, links_from(arguments, machine, options.devices),
                      options, [] { return launch::interrupted(); });
  if (found.best.empty())
    refuse_memory(found, options.memory_bytes.value_or(machine.memory_bytes.value_or(0)));
  const std::vector<std::string> why = plan::reasons(found);
  if (arguments.json) {
    print_json({{"machine", machine.name},
                {"basis", basis_of(machine)},
                {"model", job.model.family->class_name},
                {"devices", options.devices},
                {"considered", found.considered},
                {"costed", found.costed},
                {"layouts", list_json(found.best)},
                {"obvious", list_json(found.obvious)},
                {"reasons", why}});
    return;
  }
  fmt::print("{}: {}, up to {}. The soonest of {}. Times in ms, by {}\n\n{}\n", machine.name,
             job.model.family->class_name, counted(options.devices, "device"),
             counted(found.considered, "layout"), basis_of(machine),
             plan::plan_table(found.best).text(Table::Form::kText));
  for (const std::string& sentence : why) fmt::print("{}\n", sentence);
  if (found.best.front().wish.degrees() > 1) fmt::print("\n{}\n", options_text(found.best.front()));
}

}  // namespace

void run_plan(const PlanArguments& given) {
  PlanArguments arguments = given;
  const plan::Machine machine = plan::read_named_machine(arguments.machine);
  take_from_machine(arguments, machine);
  allows_stale(arguments.max_staleness);
  if (arguments.memory_limit && !(*arguments.memory_limit > 0))
    usage_error(field("memory_limit"), "must be above 0, got {}", *arguments.memory_limit);
  const job::Job job = traced_job(arguments.run);
  if (job.ranks() > 1 || job.arguments.parallel.nproc) {
    print_prediction(arguments, job, machine);
  } else if (!arguments.devices || *arguments.devices == 1) {
    PlanArguments alone = arguments;
    alone.devices = 1;
    arguments.devices ? print_prediction(alone, job, machine) : print_plan(arguments, job, machine);
  } else {
    print_plan(arguments, job, machine);
  }
}

}  // namespace tessera::cli
