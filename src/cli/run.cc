#include "cli/run.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "cli/commands.h"
#include "core/error.h"
#include "core/host.h"
#include "core/system_call.h"
#include "core/tensor_heap.h"
#include "launch/failure.h"
#include "launch/rank_environment.h"
#include "launch/signals.h"
#include "launch/streams.h"

namespace tessera::cli {
namespace {

int dispatch(const std::vector<std::string>& arguments) {
  const bool nothing_asked = arguments.empty();
  std::optional<Command> parsed;
  std::exception_ptr refusal;
  try {
    parsed = parse_arguments(arguments);
  } catch (const Error&) {
    refusal = std::current_exception();
  }
  // Among ranks started by a launcher, the first reports to the others what is wrong with the command line.
  const bool generates = parsed ? std::holds_alternative<job::GenerateArguments>(*parsed)
                                : !nothing_asked && arguments[0] == "generate";
  if (generates) {
    const auto place = launch::read_rank_environment(std::getenv);
    const auto given = [&] {
      if (refusal) std::rethrow_exception(refusal);
      return std::get<job::GenerateArguments>(*parsed);
    };
    if (place && place->world_size > 1) run_generate_as_rank(given, *place);
  }
  if (refusal) std::rethrow_exception(refusal);
  const Command& command = *parsed;
  if (const auto* generate = std::get_if<job::GenerateArguments>(&command)) {
    // A single rank has nobody to wait for, as in the shell of a scheduler's job, so ranks are started here.
    return run_generate(*generate);
  }
  if (const auto* trace = std::get_if<TraceArguments>(&command)) {
    run_trace(*trace);
    return 0;
  }
  if (const auto* calibrate = std::get_if<CalibrateArguments>(&command)) return run_calibrate(*calibrate);
  if (const auto* serve = std::get_if<serve::ServeOptions>(&command)) return run_serve(*serve);
  if (const auto* plan = std::get_if<PlanArguments>(&command)) {
    run_plan(*plan);
    return 0;
  }
  launch::end_at_first_interrupt();
  if (launch::was_output_missing() && !nothing_asked)
    usage_error("standard output", "is closed, and the result would go there");
  if (const auto* models = std::get_if<ModelsArguments>(&command)) return run_models(*models);
  if (const auto* mesh = std::get_if<MeshArguments>(&command)) {
    run_mesh(*mesh);
    return 0;
  }
  if (const auto* analysis = std::get_if<AnalyzeArguments>(&command)) {
    run_analyze(*analysis);
    return 0;
  }
  if (const auto* compare = std::get_if<CompareArguments>(&command)) {
    run_compare(*compare);
    return 0;
  }
  fmt::print(nothing_asked ? stderr : stdout, "{}", std::get<ShowText>(command).text);
  return nothing_asked ? static_cast<int>(ErrorKind::kUsage) : 0;
}

}  // namespace

int run(const std::vector<std::string>& arguments) noexcept {
  allow_many_descriptors();
  keep_freed_memory();
  launch::open_missing_streams();
  launch::install_signal_handlers();
  try {
    cap_libraries();
    const int exit_code = dispatch(arguments);
    launch::flush_output();
    return exit_code;
  } catch (...) {
    return launch::print_failure(launch::current_failure(), option_name);
  }
}

void end_program(int exit_code) noexcept {
#ifdef __SANITIZE_ADDRESS__  // it looks for leaks when a program ends
  std::exit(exit_code);
#else
  std::fflush(nullptr);
  std::_Exit(exit_code);
#endif
}

}  // namespace tessera::cli
