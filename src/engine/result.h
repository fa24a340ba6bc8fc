// What a run returns.
#pragma once

#include "tessera/result.h"

namespace tessera::engine {

using tessera::Result;
using tessera::Seconds;

}  // namespace tessera::engine
