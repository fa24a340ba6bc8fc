// One run of an engine: what happens to a batch of requests, from prompts to images.
#pragma once

#include <span>
#include <vector>

#include "engine/component_cache.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "engine/result.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Runs `requests` as Engine::run() does, on this rank. Throws SettledEnd (engine/stages.h); or another
// exception when this rank fails while messages may be under way. The results lack the total time.
std::vector<Result> run_batch(std::span<const Settings> requests, const Model& model,
                              ComponentCache& components, const parallel::Ranks& ranks,
                              const Observer& observer);

}  // namespace tessera::engine
