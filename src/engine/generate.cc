#include "engine/generate.h"

#include <chrono>

namespace tessera::engine {

Result generate(const Settings& settings, const Model& model, const Observer& observer,
                const comm::World& world, const parallel::Layout& layout) {
  const auto start = std::chrono::steady_clock::now();
  Result result = Engine(model, /*budget=*/0, world).run(settings, layout, observer);
  result.seconds.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tessera::engine
