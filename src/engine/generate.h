// Generates pictures from prompts in one run, after which nothing stays loaded.
#pragma once

#include "engine/engine.h"

namespace tessera::engine {

// Runs `settings`, which resolve() has made for this model. Each component is loaded when it is needed and
// freed afterwards, so the memory needed is that of the largest one. Throws Error, and Cancelled when the
// observer of rank 0 asks for it.
//
// All ranks of `world` must call this with the same settings, model and layout; the loss of a rank is
// Error(kPeer) on the others. Rank 0 of the world gets latents and pictures, other ranks get neither.
Result generate(const Settings& settings, const Model& model, const Observer& observer = {},
                const comm::World& world = {}, const parallel::Layout& layout = {});

}  // namespace tessera::engine
