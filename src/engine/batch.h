// Requests that are painted together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/denoise.h"
#include "engine/noise.h"
#include "engine/request.h"

namespace tessera::engine {

struct Batch {
  // Throws Error(kUsage) for requests that cannot go together, naming the first field in which they differ.
  explicit Batch(std::span<const Settings> requests);

  std::vector<models::Prompt> prompts;  // the distinct ones of all requests, negative ones as well
  Guidance guidance;                    // of the pictures, request after request
  std::vector<Noise::Share> noise;
  std::vector<Range> pictures;  // of each request

  int64_t count() const { return pictures.back().end(); }
};

}  // namespace tessera::engine
