// Where the tokens of a picture or a video lie, and how they are dealt to ranks. Tokens lie on a grid of
// frames x rows x columns, columns fastest; a cut goes through it along rows or along frames.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/range.h"

namespace tessera::parallel {

struct Grid {
  int64_t frames = 1, rows = 1, columns = 1;

  int64_t tokens() const { return frames * rows * columns; }
  bool operator==(const Grid&) const = default;
};

enum class GridAxis { kFrames, kRows };

// The lines of the cut axis (rows, or frames) are dealt to patches, which follow each other in time
// (PipeFusion), and the lines of each patch to the sequence ranks, in units of `unit` lines, evenly but for
// one unit. The same lines are a rank's from the noise to the picture.
//
// What a rank holds of a run of patches lies in the order of the grid.
struct Cut {
  // A whole grid on one rank.
  explicit Cut(Grid grid) : Cut(grid, GridAxis::kRows, 1, 1) {}
  // Every patch needs a unit (checked). The last unit may be short; ranks beyond the number of units get
  // nothing.
  Cut(Grid grid, GridAxis axis, int64_t patches, int64_t ranks, int64_t unit = 1);

  Grid grid;
  GridAxis axis;
  int64_t patches, ranks, unit;

  int64_t lines() const { return axis == GridAxis::kRows ? grid.rows : grid.frames; }
  Range all_patches() const { return {0, patches}; }

  // The grid of half as many rows and columns, rounded up, and that of twice as many, cut along rows at the
  // same places: of the former `unit` is even where there is more than one part (checked).
  Cut coarser() const;
  Cut finer() const;

  // Lines of `rank` in `patch`.
  Range part(int64_t patch, int64_t rank) const;
  // Lines of `rank` in a run of patches: one range a patch.
  std::vector<Range> parts(Range run, int64_t rank) const;
  // The grid that they make, and the ranges of tokens that they are in the whole grid.
  Grid held(Range run, int64_t rank) const;
  std::vector<Range> tokens(Range run, int64_t rank) const;
  // Ranges of the tokens that `rank` holds of `run` which are of `patch`.
  std::vector<Range> tokens_within(Range run, int64_t patch, int64_t rank) const;
};

// The ranges of `x` along `dim`, one after another; a view where there is one range.
at::Tensor select_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges);
// The other way: `part` into the ranges of `x`.
void assign_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges, const at::Tensor& part);

}  // namespace tessera::parallel
