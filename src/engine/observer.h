// Asks an observer whether to continue.
#pragma once

#include "tessera/observer.h"

namespace tessera::engine {

using tessera::Cancelled;
using tessera::Observer;
using tessera::Phase;
using tessera::phase_name;
using tessera::Preview;

// is_cancelled() returns whether the caller wants the run to end; check_cancelled() throws Cancelled if it
// does.
bool is_cancelled(const Observer& observer);
void check_cancelled(const Observer& observer);

}  // namespace tessera::engine
