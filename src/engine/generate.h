// From prompts to pictures: the whole run.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/image.h"
#include "engine/model.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "models/family.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Wall-clock seconds of a run.
struct Seconds {
  double load = 0;  // of all parts
  double encode = 0;
  double denoise = 0;
  double decode = 0;
  double total = 0;
};

struct Result {
  at::Tensor latents;         // [N, C, h, w], fp32, on the CPU; the VAE's scaling is not undone
  std::vector<Image> images;  // N; none for OutputType::kLatent
  Seconds seconds;
  std::vector<double> step_seconds;
  // Sums over the parts, which are not in memory at one time. What the weights take once loaded, in the dtype
  // and layout of the layers (weights::MemoryCounter); and bytes of the checkpoint's files that they were
  // made of. In neither: tables of which only the rows that a prompt needs are looked up, in the file.
  uint64_t weights_bytes = 0;
  uint64_t bytes_read = 0;
};

// Runs `settings`, which resolve() made for this model. Each part is loaded when its turn comes and freed
// after it, so that the memory needed is that of the largest part. Throws Error, and Cancelled when the
// observer says so.
//
// All ranks must call this with the same settings and model; a rank that is lost is an Error(kPeer) on the
// others. Rank 0 of the world gets latents and pictures, the others get neither.
Result generate(const Settings& settings, const Model& model, const Observer& observer = {},
                const parallel::Ranks& ranks = {});

}  // namespace tessera::engine
