#include "launch/failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <system_error>

#include "comm/peer_error.h"
#include "core/error.h"
#include "core/temporary_file.h"
#include "core/text.h"
#include "engine/observer.h"
#include "launch/streams.h"

namespace tessera::launch {
namespace {

Failure out_of_memory() {
  return {static_cast<int>(ErrorKind::kMemory),
          fmt::format("[memory] not enough memory; try a smaller size, fewer frames of a video, {}, or, with "
                      "fp32, {} bf16",
                      field("vae_tiling"), field("dtype"))};
}

// Recognises the messages of libraries that run out of memory. oneDNN does not name a cause; but once it has
// accepted a primitive's description, all it needs is memory for the primitive's code and scratch space.
bool is_allocation_failure(std::string_view what) {
  for (const std::string_view words :
       {"can't allocate memory", "Storage size calculation overflowed", "could not create a primitive",
        "could not execute a primitive", "could not create a memory object"}) {
    const size_t at = what.find(words);
    // "could not create a primitive descriptor ..." means that the operation is not supported.
    if (at != std::string_view::npos && !what.substr(at + words.size()).starts_with(" descriptor"))
      return true;
  }
  return false;
}

}  // namespace

int known_exit_code(int64_t code) {
  const bool of_error =
      code >= static_cast<int>(ErrorKind::kUsage) && code <= static_cast<int>(ErrorKind::kMemory);
  return of_error || code == kInterrupted ? static_cast<int>(code) : kInternalError;
}

Failure current_failure() {
  try {
    throw;
  } catch (const comm::PeerError& error) {
    return {error.exit_code(), error.message(), error.rank()};
  } catch (const Error& error) {
    return {error.exit_code(), error.message()};
  } catch (const engine::Cancelled&) {
    return {kInterrupted,
            has_finished_file() ? "stopped; finished files stay" : "stopped; nothing was written"};
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const c10::OutOfMemoryError&) {
    return out_of_memory();
  } catch (const c10::Error& error) {
    if (is_allocation_failure(error.what_without_backtrace())) return out_of_memory();
    return {kInternalError, fmt::format("[internal] {}", error.what_without_backtrace())};
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::not_enough_memory) return out_of_memory();
    // The system also reports this when it has no memory for a stack.
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return {static_cast<int>(ErrorKind::kMemory),
              "[memory] cannot start a thread; raise the limit on processes, which counts threads "
              "(ulimit -u, or of a container), or on memory (ulimit -d, -v), or free memory"};
    }
    return {kInternalError, fmt::format("[internal] {}", error.what())};
  } catch (const std::exception& error) {
    if (is_allocation_failure(error.what())) return out_of_memory();
    return {kInternalError, fmt::format("[internal] {}", error.what())};
  }
}

int print_failure(const Failure& failure, const FieldSpelling& spelling) {
  std::string message = spell(failure.message, spelling);
  if (const size_t end = message.find_last_not_of("\r\n "); end != std::string::npos) message.resize(end + 1);
  say("tessera: " + printable(message) + '\n');
  return failure.exit_code;
}

}  // namespace tessera::launch
