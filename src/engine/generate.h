// From prompts to pictures: one run, after which nothing stays.
#pragma once

#include "engine/engine.h"

namespace tessera::engine {

// Runs `settings`, which resolve() made for this model. Each part is loaded when its turn comes and freed
// after it, so that the memory needed is that of the largest part. Throws Error, and Cancelled when the
// observer of rank 0 says so.
//
// All ranks of `world` must call this with the same settings, model and layout; a rank that is lost is an
// Error(kPeer) on the others. Rank 0 of the world gets latents and pictures, the others get neither.
Result generate(const Settings& settings, const Model& model, const Observer& observer = {},
                const comm::World& world = {}, const parallel::Layout& layout = {});

}  // namespace tessera::engine
