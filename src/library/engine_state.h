// The implementation of the engine of include/tessera/.
#pragma once

#include <vector>

#include "comm/world.h"
#include "engine/engine.h"
#include "parallel/layout.h"
#include "tessera/engine.h"

namespace tessera {

struct Engine::State {
  explicit State(const EngineOptions& options, comm::World world_of_ranks);

  // Returns the requests with every choice made, the same on all ranks.
  std::vector<engine::Settings> resolve(std::span<const Request> requests);
  parallel::Layout layout_for(std::span<const engine::Settings> requests) const;

  comm::World world;
  engine::Engine engine;
  ParallelOptions parallel;
};

}  // namespace tessera
