#include <fmt/format.h>

#include <utility>

#include "cli/commands.h"
#include "cli/measured_runs.h"
#include "core/error.h"
#include "core/text.h"
#include "engine/request.h"
#include "job/outputs.h"
#include "launch/cores.h"
#include "launch/streams.h"
#include "plan/calibration/calibrate.h"
#include "plan/machine.h"

namespace tessera::cli {
const char* const kCalibrateFooter =
    R"(Times operations, messages between ranks and ranks side by side on the processors of this host, and writes a machine
file for tessera plan --machine and tessera analyze hardware --machine; it is best done while nothing else runs. Or fits the file of a
machine to runs that were measured on it. docs/planning.md says what is measured and fitted.

Examples:
  tessera calibrate -o machine.json
  tessera calibrate --threads 8 --nproc 2 --dtype bf16 -o machine.json
  tessera calibrate --from-records run.json two-ranks.json --machine machine.json -o fitted.json
  tessera calibrate --from-table rows.csv --machine l20 -o fitted.json)";

const Fields<CalibrateArguments>& calibrate_fields() {
  using C = CalibrateArguments;
  static const Fields<C> fields = {
      plain_field(&C::output, {"output", "File for the machine, JSON; - for standard output [machine.json]",
                               FieldGroup::kOutput, "FILE"}),
      plain_field(
          &C::from_table,
          {"from_table",
           "Fit a machine to the runs of this table instead of measuring this host: a CSV with the columns "
           "model, height, width, frames, steps, batch, devices, flags and seconds (docs/planning.md)",
           FieldGroup::kMachine, "FILE.csv"}),
      plain_field(&C::from_records,
                  {"from_records", "The same, to runs that tessera generate --record wrote to these files",
                   FieldGroup::kMachine, "FILE ..."}),
      plain_field(&C::machine, {"machine", "The machine of the runs: a file, or the name of one that ships",
                                FieldGroup::kMachine, "FILE"}),
      plain_field(&C::threads, {"threads", "Threads of a rank, as a run has them [1]", FieldGroup::kMachine,
                                "N", 1, 1024}),
      plain_field(&C::nproc,
                  {"nproc", "The largest number of ranks that compute at once on this host [cores / threads]",
                   FieldGroup::kMachine, "N", 1, 1024}),
      choice_field(
          &C::dtype,
          {"dtype", "Measure only this dtype [fp32, and bf16 if the processor multiplies it]",
           FieldGroup::kMachine, ""},
          std::vector<std::pair<std::string, at::ScalarType>>{{"fp32", at::kFloat}, {"bf16", at::kBFloat16}}),
      plain_field(&C::seconds,
                  {"seconds", "About how long to measure [90]", FieldGroup::kMachine, "S", 1, 3600}),
      plain_field(&C::quiet,
                  {"quiet", "Do not report on stderr what is being measured", FieldGroup::kOutput})};
  return fields;
}

namespace {

// Writes the machine that fits the measured runs, and prints how closely it fits each of them.
void calibrate_from_runs(const CalibrateArguments& arguments, const std::string& path) {
  const char* const given_as = arguments.from_table ? "from_table" : "from_records";
  if (arguments.from_table && !arguments.from_records.empty())
    usage_error(field("from_table"), "and {} are two ways to give runs; leave one out",
                field("from_records"));
  if (!arguments.machine)
    usage_error(field(given_as), "needs {}: the file or the name of the machine on which the runs were made",
                field("machine"));
  for (const auto& [given, name] :
       {std::pair(arguments.threads.has_value(), "threads"), std::pair(arguments.nproc.has_value(), "nproc"),
        std::pair(arguments.dtype.has_value(), "dtype"),
        std::pair(arguments.seconds.has_value(), "seconds")}) {
    if (given)
      usage_error(field(name), "is for measuring this host, and {} measures nothing; leave it out",
                  field(given_as));
  }
  const RunsFit fitted = arguments.from_table ? fit_table(*arguments.from_table, *arguments.machine)
                                              : fit_records(arguments.from_records, *arguments.machine);
  const bool is_file = job::write_result(path, fitted_machine(fitted).dump(2) + "\n");
  if (!arguments.quiet) {
    launch::say(fmt::format("{}\n{}{}", runs_table(fitted).text(Table::Form::kText), numbers_text(fitted),
                            misses_text(fitted)));
  }
  if (is_file) fmt::print("{}\n", path);
}

// Ranks that share cores wait for each other: measuring them takes minutes and reveals nothing about the
// processor.
void require_cores(const plan::CalibrationOptions& options, int64_t cores) {
  if (options.threads > cores)
    usage_error(field("threads"), "is {}, more than the {} that there are", options.threads,
                counted(cores, "core"));
  if (options.ranks * options.threads > cores)
    usage_error(field("nproc"), "is {}, for which {} a rank there are too few cores: {}; give at most {}",
                options.ranks, counted(options.threads, "thread"), cores, cores / options.threads);
}

}  // namespace

int run_calibrate(const CalibrateArguments& arguments) {
  const std::string path = arguments.output.value_or("machine.json");
  job::require_result_path("--output", path);
  if (arguments.from_table || !arguments.from_records.empty()) {
    calibrate_from_runs(arguments, path);
    return 0;
  }
  if (arguments.machine)
    usage_error(field("machine"), "needs {} or {}; without them this host is measured", field("from_table"),
                field("from_records"));
  const auto cores = static_cast<int64_t>(launch::allowed_cores().size());
  plan::CalibrationOptions options;
  options.threads = arguments.threads.value_or(1);
  options.ranks = arguments.nproc.value_or(std::max<int64_t>(cores / options.threads, 1));
  require_cores(options, cores);
  options.dtypes = arguments.dtype ? std::vector{*arguments.dtype} : plan::host_dtypes();
  options.seconds = arguments.seconds.value_or(options.seconds);
  const auto say = [&](const std::string& what) {
    if (!arguments.quiet) launch::say(fmt::format("measuring {}\n", what));
  };
  try {
    const OrderedJson machine = plan::calibrate(options, say);
    if (job::write_result(path, machine.dump() + "\n")) fmt::print("{}\n", path);
  } catch (const plan::RanksFailed& failed) {
    return launch::print_failure(failed.failure, option_name);
  }
  return 0;
}

}  // namespace tessera::cli
