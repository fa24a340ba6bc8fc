#include "engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <exception>
#include <utility>

#include "core/host.h"
#include "core/log.h"
#include "engine/phases.h"
#include "engine/run_context.h"
#include "engine/session.h"

namespace tessera::engine {

Engine::Engine(Model model, uint64_t budget, comm::World world)
    : model_(std::move(model)), components_(model_, budget), world_(std::move(world)) {
  const c10::InferenceMode inference_mode;
  const SuppressLog suppress_log;  // loading gives the same warnings
  make_first_calls();
  check_weights(model_);
}

std::vector<Result> Engine::run(std::span<const Settings> requests, const parallel::Layout& layout,
                                const Observer& observer) {
  Session session(*this, layout);
  const Session::Id id = session.begin(requests, observer);
  while (session.advance()) {
  }
  return session.take(id);
}

Result Engine::run(const Settings& request, const parallel::Layout& layout, const Observer& observer) {
  return std::move(run(std::span(&request, 1), layout, observer).front());
}

void Engine::load(const Settings& request, const parallel::Layout& layout) {
  const c10::InferenceMode inference_mode;
  try {
    const parallel::Ranks ranks(world_, layout, request.request.device);
    const Observer nobody;
    RunContext run(std::span(&request, 1), model_, components_, ranks, nobody);
    prepare(run);
    load_all(run);
  } catch (const SettledEnd& end) {
    std::rethrow_exception(end.cause);
  } catch (...) {
    give_up();
    throw;
  }
}

void Engine::give_up() {
  is_usable_ = false;  // until it is known that every rank is still there
  try {
    is_usable_ = world_.abort();
  } catch (const std::exception&) {  // the failure of the run matters more
  }
}

}  // namespace tessera::engine
