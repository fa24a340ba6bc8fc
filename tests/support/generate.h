// One run, after which nothing stays loaded.
#pragma once

#include "engine/engine.h"

namespace tessera::engine {

inline Result generate(const Settings& settings, const Model& model, const Observer& observer = {},
                       const comm::World& world = {}, const parallel::Layout& layout = {}) {
  return Engine(model, /*budget=*/0, world).run(settings, layout, observer);
}

}  // namespace tessera::engine
