// The sizes of a transformer and the degrees of its parallelism, from which everything in plan/ follows.
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
  int64_t batch = 1;                            // of all ranks together
  std::optional<int64_t> key_value_heads = {};  // grouped queries (arXiv:2305.13245)
  std::optional<int64_t> vocabulary = {};       // of a last layer that gives logits
  std::optional<int64_t> frames = {};           // of the sequence, for DSP
  std::optional<TensorMesh> mesh = {};
  std::optional<int64_t> ulysses_degree = {}, ring_degree = {};  // of USP
  std::optional<int64_t> micro_batches = {};                     // of the pipeline
  int64_t interleaved = 1;  // runs of layers that a stage of the pipeline has
};

const Fields<Sizes>& sizes_fields();

// Fills in what is left out, but for the vocabulary and the frames: as many heads of keys as of queries, the
// squarest mesh, the largest degree of Ulysses that the heads allow, and a micro-batch for each rank
// or for each sample if those are fewer. Throws
// Error(kUsage) for sizes that do not fit each other, and for more ranks than there is of any of them.
Sizes resolve(Sizes sizes);

}  // namespace tessera::plan
