// The process of a world: it loads the model on one or more ranks, which then carry out the orders of the
// front.
#pragma once

#include <cstdint>

#include "job/job.h"
#include "launch/failure.h"
#include "serve/control.h"
#include "serve/options.h"

namespace tessera::serve {

// Makes every choice of a world except those that each request determines, by the rules of `tessera
// generate`. Throws Error for options, a model or a layout that no world could work with. Reads no weights.
job::Job plan_world(const ServeOptions& options);

// Runs the world with this number until an order ends it. If it has several ranks, this process starts them
// as forks and watches them: a rank that ends, or is stopped for two seconds, ends all. Tells the supervisor
// when the weights are loaded. Must be called on the only thread of a process that has not computed and that
// ends afterwards. Returns what failed, and throws Error for what is wrong with the options or the model.
launch::Failure run_world_process(const ServeOptions& options, int64_t number, Descriptor control,
                                  Descriptor port);

}  // namespace tessera::serve
