#include "parallel/cut.h"

#include "core/error.h"

namespace tessera::parallel {

TokenCut::TokenCut(int64_t all_rows, int64_t all_columns, int64_t patch_count, comm::Group ulysses_group,
                   comm::Group ring_group)
    : rows(all_rows),
      columns(all_columns),
      patches(patch_count),
      ulysses(std::move(ulysses_group)),
      ring(std::move(ring_group)) {
  TESSERA_CHECK(patches >= 1 && patches * sequence_ranks() <= rows, "{} patches on {} ranks, {} rows",
                patches, sequence_ranks(), rows);
}

Range TokenCut::part(int64_t patch, int64_t rank) const {
  const Range whole = split_evenly(rows, patch, patches);
  const Range part = split_evenly(whole.length, rank, sequence_ranks());
  return {whole.begin + part.begin, part.length};
}

int64_t TokenCut::row_count(Range run, int64_t rank) const {
  int64_t count = 0;
  for (int64_t patch = run.begin; patch < run.end(); ++patch) count += part(patch, rank).length;
  return count;
}

}  // namespace tessera::parallel
