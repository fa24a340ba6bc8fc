// A batch combines requests into one run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/denoise.h"
#include "engine/noise.h"
#include "engine/request.h"

namespace tessera::engine {

// Returns, as JSON, the fields and values that all requests of a batch have in common: those whose scope is
// not FieldScope::kPicture. Requests with the same key can share a batch.
std::string batch_key(const Settings& settings);
// Throws Error(kUsage) for requests that cannot share a batch, naming the first field in which they differ. A
// guided request, which has fields of guidance such as guidance_rescale, can share a batch with an unguided
// one.
void require_alike(const Settings& a, const Settings& b);

struct Batch {
  // Throws Error(kUsage) for requests that cannot share a batch, naming the first field in which they differ.
  explicit Batch(std::span<const Settings> requests);

  std::vector<models::Prompt> prompts;  // the distinct prompts of all requests, including negative ones
  // By picture, request after request; for long videos one for each part, otherwise a single one.
  std::vector<Guidance> guidance;
  std::vector<double> guidance_scales;  // models::kGuidanceScale by picture
  std::vector<Noise::Share> noise;
  std::vector<Range> pictures;  // of each request

  int64_t count() const { return pictures.back().end(); }
};

}  // namespace tessera::engine
