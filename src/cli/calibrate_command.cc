#include <fmt/format.h>

#include "cli/commands.h"
#include "core/cpu.h"
#include "core/error.h"
#include "engine/request.h"
#include "job/outputs.h"
#include "launch/cores.h"
#include "launch/streams.h"
#include "plan/calibration/calibrate.h"
#include "plan/machine.h"

namespace tessera::cli {
namespace {

// The dtypes in which networks compute here: fp32, and bf16 where the processor multiplies it.
std::vector<at::ScalarType> dtypes_of(const CalibrateArguments& arguments) {
  if (arguments.dtype) return {*arguments.dtype};
  std::vector<at::ScalarType> dtypes = {at::kFloat};
  if (cpu_has_bf16()) dtypes.push_back(at::kBFloat16);
  return dtypes;
}

}  // namespace

const Fields<CalibrateArguments>& calibrate_fields() {
  using C = CalibrateArguments;
  static const Fields<C> fields = {
      plain_field(&C::output, {"output", "File for the machine, JSON; - for standard output [machine.json]",
                               FieldGroup::kOutput, "FILE"}),
      plain_field(&C::threads, {"threads", "Threads of a rank, as a run has them [1]", FieldGroup::kMachine,
                                "N", 1, 1024}),
      plain_field(&C::nproc, {"nproc", "The most ranks that compute at once on this host [cores / threads]",
                              FieldGroup::kMachine, "N", 1, 1024}),
      choice_field(
          &C::dtype,
          {"dtype", "Measure this dtype alone [fp32, and bf16 where the processor multiplies it]",
           FieldGroup::kMachine, ""},
          std::vector<std::pair<std::string, at::ScalarType>>{{"fp32", at::kFloat}, {"bf16", at::kBFloat16}}),
      plain_field(&C::seconds,
                  {"seconds", "About how long to measure [90]", FieldGroup::kMachine, "S", 1, 3600}),
      plain_field(&C::quiet, {"quiet", "Do not say on stderr what is being measured", FieldGroup::kOutput})};
  return fields;
}

int run_calibrate(const CalibrateArguments& arguments) {
  const std::string path = arguments.output.value_or("machine.json");
  job::require_result_path("--output", path);
  const auto cores = static_cast<int64_t>(launch::allowed_cores().size());
  plan::CalibrationOptions options;
  options.threads = arguments.threads.value_or(1);
  options.ranks = arguments.nproc.value_or(std::max<int64_t>(cores / options.threads, 1));
  options.dtypes = dtypes_of(arguments);
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
