#include "launch/failure.h"

#include <c10/util/Exception.h>

#include <new>

#include "core/error.h"
#include "engine/observer.h"
#include "launch/streams.h"

namespace tessera::launch {
namespace {

Failure out_of_memory() {
  return {static_cast<int>(ErrorKind::kMemory),
          "[memory] not enough memory; try a smaller size, fewer pictures at once, or --dtype bf16"};
}

bool is_allocation_failure(const c10::Error& error) {
  const std::string_view what = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         what.find("can't allocate memory") != std::string_view::npos ||
         what.find("Storage size calculation overflowed") != std::string_view::npos;
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.exit_code(), error.what()};
  } catch (const engine::Cancelled&) {
    return {kInterrupted, "stopped; nothing was written"};
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const c10::Error& error) {
    if (is_allocation_failure(error)) return out_of_memory();
    return {kInternalError, fmt::format("[internal] {}", error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {kInternalError, fmt::format("[internal] {}", error.what())};
  }
}

int tell(const Failure& failure) {
  std::string message = failure.message;
  if (const size_t end = message.find_last_not_of("\r\n "); end != std::string::npos) message.resize(end + 1);
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  say("tessera: " + message + '\n');
  return failure.exit_code;
}

}  // namespace tessera::launch
