// The sizes of a transformer and the degrees of its parallelism, from which the closed forms follow.
#pragma once

#include <cstdint>
#include <optional>

#include "core/fields.h"

namespace tessera::plan {

// Two-dimensional tensor parallelism: activations are gathered over groups of y ranks, and sums are scattered
// over groups of x.
struct TensorMesh {
  int64_t x = 1, y = 1;
};

struct Sizes {
  // Required.
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t sequence = 0;
  int64_t degree = 0;
  int64_t batch = 1;                            // for all ranks together
  std::optional<int64_t> key_value_heads = {};  // grouped queries (arXiv:2305.13245)
  std::optional<int64_t> vocabulary = {};       // for a last layer that returns logits
  std::optional<int64_t> frames = {};           // of the sequence, for DSP
  std::optional<TensorMesh> mesh = {};
  std::optional<int64_t> ulysses_degree = {}, ring_degree = {};  // of USP
  std::optional<int64_t> micro_batches = {};                     // of the pipeline
  int64_t interleaved = 1;  // groups of consecutive layers in a pipeline stage
};

const Fields<Sizes>& sizes_fields();

// Fills in what is left out, except the vocabulary and the frames: as many key heads as query heads, the
// squarest mesh, the largest degree of Ulysses that the heads allow, and a micro-batch for each rank, or for
// each sample if there are fewer. Throws Error(kUsage) for inconsistent sizes, and for sizes that are smaller
// than the number of ranks that divide them.
Sizes resolve(Sizes sizes);

}  // namespace tessera::plan
