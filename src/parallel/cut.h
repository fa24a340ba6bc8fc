// How the tokens of a picture lie on the ranks of the sequence axes and, with PipeFusion, follow each other
// in time. The cut is by rows of tokens: the same rows are a rank's from the noise to the picture.
//
// Rows are cut into patches, each patch into one part for each sequence rank. A sequence rank is
// ring rank * Ulysses size + Ulysses rank.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/group.h"

namespace tessera::parallel {

struct TokenCut {
  // A whole picture on one rank.
  TokenCut(int64_t rows, int64_t columns) : rows(rows), columns(columns) {}
  TokenCut(int64_t rows, int64_t columns, int64_t patches, comm::Group ulysses, comm::Group ring);

  int64_t rows = 0, columns = 0;  // of tokens
  int64_t patches = 1;
  comm::Group ulysses, ring;

  int64_t sequence_ranks() const { return ulysses.size * ring.size; }
  int64_t sequence_rank() const { return ring.rank * ulysses.size + ulysses.rank; }
  Range all_patches() const { return {0, patches}; }

  // Rows of the picture that are `rank`'s in `patch`.
  Range part(int64_t patch, int64_t rank) const;
  // Rows or tokens of `rank` in a run of patches, which it holds one after another.
  int64_t row_count(Range run, int64_t rank) const;
  int64_t token_count(Range run, int64_t rank) const { return row_count(run, rank) * columns; }
};

}  // namespace tessera::parallel
