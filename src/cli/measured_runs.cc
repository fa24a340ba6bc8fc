#include "cli/measured_runs.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "plan/find_machine.h"
#include "plan/planner/recorded_run.h"
#include "plan/trace_views.h"

namespace tessera::cli {
namespace {

using Unit = Table::Column::Unit;

// A run counts as missed where the fit is so many times too long or too short. Of the fits to published runs
// that ship, the worst rows are 1.25 and 1 / 1.28.
constexpr double kMuch = 1.35;

// What all records of a fit have in common, which the first of them tells.
struct Common {
  std::string path;
  plan::RecordedOn on;
};

std::string threads_text(int64_t threads) {
  return counted(threads, "thread") + " a rank";
}

void require_of(const plan::Machine& machine, const plan::RecordedOn& on, const std::string& path) {
  if (machine.device != "cpu")
    input_error(path, "the run was on processors, as all that are recorded, and {} is a machine of {}",
                machine.where, machine.device);
  if (!machine.gemm_rates.contains(on.dtype))
    input_error(path, "the run was in {}, for which {} has no rate", on.dtype, machine.where);
  const JsonConfig text(machine.text, machine.where);
  const Json* const calibration = text.value("calibration");
  if (calibration == nullptr || !calibration->is_object()) return;
  const auto threads = calibration->find("threads");
  if (threads != calibration->end() && *threads != on.threads)
    input_error(path, "the run had {}, and {} was measured with {}", threads_text(on.threads), machine.where,
                threads->dump());
}

void require_alike(const Common& first, const plan::RecordedOn& on, const std::string& path) {
  if (on.dtype != first.on.dtype)
    input_error(path, "the run was in {}, and that of {} in {}; fit each dtype by itself", on.dtype,
                first.path, first.on.dtype);
  if (on.threads != first.on.threads)
    input_error(path, "the run had {}, and that of {} had {}; a device is a rank with its threads",
                threads_text(on.threads), first.path, first.on.threads);
}

}  // namespace

RunsFit fit_records(const std::vector<std::string>& paths, const std::string& machine_name) {
  const plan::Machine machine = plan::read_named_machine(machine_name);
  plan::OperationCosts costs(machine);
  RunsFit fitted;
  std::optional<Common> first;
  for (const std::string& path : paths) {
    const plan::Trace trace = plan::read_trace_file(path);
    const plan::RecordedOn on = plan::recorded_on(trace, path);
    require_of(machine, on, path);
    if (first) require_alike(*first, on, path);
    if (!first) first = Common{path, on};
    if (trace.world_size > 1 && machine.links.empty())
      input_error(machine.where, "'links' is empty, but the run of {} is on {} ranks", path,
                  trace.world_size);
    for (plan::MeasuredRun& run : plan::measured_phases(trace, costs, path))
      fitted.runs.push_back(std::move(run));
  }
  fitted.fit = plan::fit_machine(machine, machine.links, fitted.runs);
  return fitted;
}

OrderedJson fitted_machine(const RunsFit& fitted) {
  const plan::Machine& machine = fitted.fit.machine;
  OrderedJson json = OrderedJson::parse(machine.text.dump());
  json["name"] = machine.name;
  json["efficiency"] = machine.efficiency.json();
  json["launch_us"] = machine.launch * 1e6;
  json["links"] = plan::links_json(machine.links);
  OrderedJson& told = json["calibration"] = OrderedJson::object();
  told["fitted"] = OrderedJson::object();
  for (const plan::FittedNumber& number : fitted.fit.numbers) {
    OrderedJson& own = told["fitted"][number.name];
    own["value"] = number.value;
    if (!number.unit.empty()) own["unit"] = number.unit;
    if (number.factor) own["factor"] = *number.factor;
  }
  told["rows"] = runs_table(fitted).json();
  return json;
}

std::string numbers_text(const RunsFit& fitted) {
  std::string text;
  for (const plan::FittedNumber& number : fitted.fit.numbers) {
    text += fmt::format("{:<24} {:.4g}{}{}{}\n", number.name, number.value,
                        number.unit.empty() ? "" : " " + number.unit,
                        number.factor ? fmt::format(" ({:.3f} x where the fit began)", *number.factor) : "",
                        number.is_told ? "" : "; no run depends on it");
  }
  return text;
}

std::string misses_text(const RunsFit& fitted) {
  const auto ratio = [&](size_t run) { return fitted.fit.seconds[run] / fitted.runs[run].seconds; };
  size_t worst = 0;
  int64_t count = 0;
  for (size_t i = 0; i < fitted.runs.size(); ++i) {
    const auto distance = [&](size_t run) { return std::abs(std::log(ratio(run))); };
    if (distance(i) > std::log(kMuch)) ++count;
    if (distance(i) > distance(worst)) worst = i;
  }
  if (count == 0) return "";
  return fmt::format(
      "warning: the fit misses {} of {} by much: {} is predicted at {:.2f} times what it took; such a run "
      "was "
      "disturbed, or was not as it is described, and the numbers are worth little\n",
      count, counted(std::ssize(fitted.runs), "run"), fitted.runs[worst].name, ratio(worst));
}

Table runs_table(const RunsFit& fitted) {
  Table table({{"run", "run"},
               {"devices", "devices"},
               {"measured_seconds", "measured", Unit::kSeconds},
               {"predicted_seconds", "predicted", Unit::kSeconds},
               {"error", "error", Unit::kShare}});
  for (size_t i = 0; i < fitted.runs.size(); ++i) {
    const plan::MeasuredRun& run = fitted.runs[i];
    table.add(
        {run.name, run.devices, run.seconds, fitted.fit.seconds[i], fitted.fit.seconds[i] / run.seconds - 1});
  }
  return table;
}

}  // namespace tessera::cli
