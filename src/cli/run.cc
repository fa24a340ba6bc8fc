#include "cli/run.h"

#include <cstdio>

#include "cli/arguments.h"
#include "cli/failure.h"
#include "cli/generate_command.h"
#include "cli/mesh_command.h"
#include "cli/models_command.h"
#include "cli/signals.h"
#include "cli/streams.h"
#include "core/error.h"

namespace tessera::cli {
namespace {

int dispatch(std::vector<std::string> arguments) {
  const bool nothing_asked = arguments.empty();
  const Command command = parse_arguments(std::move(arguments));
  if (const auto* generate = std::get_if<GenerateArguments>(&command)) {
    run_generate(*generate);
    return 0;
  }
  if (const auto* models = std::get_if<ModelsArguments>(&command)) return run_models(*models);
  if (const auto* mesh = std::get_if<MeshArguments>(&command)) {
    run_mesh(*mesh);
    return 0;
  }
  fmt::print(nothing_asked ? stderr : stdout, "{}", std::get<ShowText>(command).text);
  return nothing_asked ? static_cast<int>(ErrorKind::kUsage) : 0;
}

}  // namespace

int run(std::vector<std::string> arguments) noexcept {
  open_missing_streams();
  install_signal_handlers();
  try {
    const int exit_code = dispatch(std::move(arguments));
    flush_output();
    return exit_code;
  } catch (...) {
    return tell(current_failure());
  }
}

}  // namespace tessera::cli
