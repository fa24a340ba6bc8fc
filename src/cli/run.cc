#include "cli/run.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <new>

#include "cli/arguments.h"
#include "cli/generate_command.h"
#include "cli/mesh_command.h"
#include "cli/models_command.h"
#include "cli/signals.h"
#include "cli/streams.h"
#include "core/error.h"
#include "pipelines/observer.h"

namespace tessera::cli {
namespace {

constexpr int kInternalError = 1;
constexpr int kInterrupted = 130;  // 128 + SIGINT

// One line without control characters, whatever the message holds.
int fail(int exit_code, std::string message) {
  if (const size_t end = message.find_last_not_of("\r\n "); end != std::string::npos) message.resize(end + 1);
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  say("tessera: " + message + '\n');
  return exit_code;
}

int out_of_memory() {
  return fail(static_cast<int>(ErrorKind::kMemory),
              "[memory] not enough memory; try a smaller size, fewer pictures at once, or --dtype bf16");
}

bool is_allocation_failure(const c10::Error& error) {
  const std::string_view what = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         what.find("can't allocate memory") != std::string_view::npos ||
         what.find("Storage size calculation overflowed") != std::string_view::npos;
}

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
  } catch (const Error& error) {
    return fail(error.exit_code(), error.what());
  } catch (const pipelines::Cancelled&) {
    return fail(kInterrupted, "stopped; nothing was written");
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const c10::Error& error) {
    if (is_allocation_failure(error)) return out_of_memory();
    return fail(kInternalError, fmt::format("[internal] {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return fail(kInternalError, fmt::format("[internal] {}", error.what()));
  }
}

}  // namespace tessera::cli
