#include "engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <chrono>
#include <exception>
#include <utility>

#include "core/cpu.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/run.h"
#include "engine/stages.h"

namespace tessera::engine {
namespace {

// Gives up all messages after a failure. Returns whether the next run can use the world; it cannot if another
// rank is lost.
bool abort(comm::World& world) {
  try {
    return world.abort();
  } catch (const std::exception&) {  // the failure of the run matters more
    return false;
  }
}

}  // namespace

Engine::Engine(Model model, uint64_t budget, comm::World world)
    : model_(std::move(model)), components_(model_, budget), world_(std::move(world)) {
  const c10::InferenceMode inference_mode;
  const SuppressLog suppress_log;  // loading gives the same warnings
  make_first_calls();
  check_weights(model_);
}

std::vector<Result> Engine::run(std::span<const Settings> requests, const parallel::Layout& layout,
                                const Observer& observer) {
  const c10::InferenceMode inference_mode;
  const auto start = std::chrono::steady_clock::now();
  TESSERA_CHECK(!requests.empty(), "no requests");
  if (!is_usable_)
    throw Error(ErrorKind::kPeer, "engine",
                "an earlier request failed while its ranks waited for each other");
  std::vector<Result> results;
  try {
    const parallel::Ranks ranks(world_, layout, requests.front().request.device);
    results = run_batch(requests, model_, components_, ranks, observer);
  } catch (const SettledEnd& end) {
    std::rethrow_exception(end.cause);
  } catch (...) {
    is_usable_ = false;  // unless all others come here too
    is_usable_ = abort(world_);
    throw;
  }
  world_.trim();
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - start;
  for (Result& result : results) result.seconds.total = total.count();
  return results;
}

Result Engine::run(const Settings& request, const parallel::Layout& layout, const Observer& observer) {
  return std::move(run(std::span(&request, 1), layout, observer).front());
}

}  // namespace tessera::engine
