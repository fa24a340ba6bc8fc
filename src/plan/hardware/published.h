// The formulas with which the published figures of the machine tx8 were computed, weak points included, so
// that these figures can be reproduced. docs/hardware.md says what is wrong with them. Sizes in MiB are
// divided by bandwidths in GB/s and the result is taken for milliseconds; a giga is 2^30 operations, but 10^9
// in attention; what is stored is counted once for all turns, and the softmax once for each block of queries.
#pragma once

#include "plan/hardware/mapping.h"

namespace tessera::plan {

// Parts are divisors of the sequence, of a norm, or of its elements: of one sample, not of the batch. The
// highest utilization wins.
Mapping map_vector_as_published(const VectorWork& work, const Machine& machine, const MapOptions& options);

// Tiles divide the padded rows and columns; the inner dimension is not split. The lowest latency wins.
Mapping map_gemm_as_published(const GemmWork& work, const Machine& machine, const MapOptions& options);

// Blocks divide the padded sequences and are at most a sixteenth of them. The highest utilization wins.
Mapping map_attention_as_published(const AttentionWork& work, const Machine& machine,
                                   const MapOptions& options);

// One tile of a product, whose input stays or whose weight does; nothing where the SRAM is too small.
std::optional<Mapping> published_gemm(const GemmWork& work, int64_t rows, int64_t columns, bool input_stays,
                                      const Machine& machine, const MapOptions& options);

}  // namespace tessera::plan
