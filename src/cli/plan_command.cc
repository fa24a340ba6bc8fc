#include <fmt/ranges.h>

#include <algorithm>

#include "cli/field_options.h"
#include "cli/plan_arguments.h"
#include "cli/traced_job.h"
#include "core/error.h"
#include "core/text.h"
#include "launch/signals.h"
#include "plan/find_machine.h"
#include "plan/planner/planner.h"

namespace tessera::cli {
namespace {

constexpr double kBytesPerGib = 1024.0 * 1024 * 1024;

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

// What one layout takes, which the degrees name.
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
    print_json(json);
    return;
  }
  fmt::print("{}: {} on {}. Times in ms, by {}\n\n{}", machine.name, job.model.family->class_name,
             counted(job.ranks(), "device"), plan::basis_of(machine),
             plan::plan_table({planned}).text(Table::Form::kText));
}

[[noreturn]] void refuse_memory(const plan::Plan& plan, double limit) {
  const plan::PlannedLayout& nearest = *plan.least_memory;
  usage_error(field("memory_limit"),
              "no layout fits into {:.3g} GiB a device; nearest is {} ({}), which needs {:.3g} GiB",
              limit / kBytesPerGib, nearest.name,
              nearest.wish.degrees() > 1 ? options_text(plan::options_json(nearest)) : "no options",
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
      plan::make_plan(job.settings, job.model, machine, links_of(arguments, machine, options.devices),
                      options, [] { return launch::interrupted(); });
  if (found.best.empty())
    refuse_memory(found, options.memory_bytes.value_or(machine.memory_bytes.value_or(0)));
  const std::vector<std::string> why = plan::reasons(found);
  if (arguments.json) {
    print_json({{"machine", machine.name},
                {"basis", plan::basis_of(machine)},
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
             counted(found.considered, "layout"), plan::basis_of(machine),
             plan::plan_table(found.best).text(Table::Form::kText));
  for (const std::string& sentence : why) fmt::print("{}\n", sentence);
  if (found.best.front().wish.degrees() > 1)
    fmt::print("\n{}\n", options_text(plan::options_json(found.best.front())));
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
