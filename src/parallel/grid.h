// How the tokens of an image or a video are laid out, and how they are dealt to ranks. Tokens lie on a grid
// of frames x rows x columns, with columns fastest. A cut splits the grid along rows, along frames, or both.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/range.h"
#include "tessera/parallel_options.h"

namespace tessera::parallel {

struct Grid {
  int64_t frames = 1, rows = 1, columns = 1;

  int64_t tokens() const { return frames * rows * columns; }
  bool operator==(const Grid&) const = default;
};

using tessera::GridAxis;

// The lines (rows or frames) of one axis are dealt to patches, which are computed one after another
// (PipeFusion), and those of the same or the other axis to the sequence ranks. If it is the same axis, the
// lines of each patch are divided among the ranks; otherwise all lines are. Lines are dealt in units of
// `unit`: equally to patches, and to ranks by their shares. A rank keeps its lines for the whole denoising
// loop.
//
// The tokens that a rank holds of a run of patches are in the order of the grid.
struct Cut {
  // Puts the whole grid on one rank.
  explicit Cut(Grid grid) : Cut(grid, GridAxis::kRows, 1, 1) {}
  // Checks that every patch has at least one unit. The last unit may be short; if there are fewer units than
  // ranks, some ranks get nothing.
  Cut(Grid grid, GridAxis axis, int64_t patches, int64_t ranks, int64_t unit = 1, Shares shares = {})
      : Cut(grid, axis, patches, axis, ranks, unit, std::move(shares)) {}
  Cut(Grid grid, GridAxis patch_axis, int64_t patches, GridAxis rank_axis, int64_t ranks, int64_t unit = 1,
      Shares shares = {});

  Grid grid;
  GridAxis patch_axis, rank_axis;
  int64_t patches, ranks, unit;
  Shares shares;  // of the ranks

  int64_t lines(GridAxis axis) const { return axis == GridAxis::kRows ? grid.rows : grid.frames; }
  Range all_patches() const { return {0, patches}; }

  // The grids with half (rounded up) and twice as many rows and columns, cut along rows at the same places.
  // coarser() requires an even `unit` if there is more than one rank (checked).
  Cut coarser() const;
  Cut finer() const;

  // The lines of `rank` in `patch`, along the axis of the ranks.
  Range part(int64_t patch, int64_t rank) const;
  // The part of `rank` in `patch` of `count` things beside the grid: they are dealt to patches, and those of
  // a patch to the ranks by their shares.
  Range part_beside(int64_t count, int64_t patch, int64_t rank) const;
  // The lines along an axis that `rank` holds in a run of patches, in order.
  std::vector<Range> lines_of(GridAxis axis, Range run, int64_t rank) const;
  // The grid that these lines form, and the ranges of tokens that they cover in the whole grid.
  Grid held(Range run, int64_t rank) const;
  std::vector<Range> tokens(Range run, int64_t rank) const;
  // The ranges that belong to `patch`, among the tokens that `rank` holds of `run`.
  std::vector<Range> tokens_within(Range run, int64_t patch, int64_t rank) const;
};

// Concatenates the ranges of `x` along `dim`; returns a view if there is only one range.
at::Tensor select_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges);
// The inverse: copies `part` into the ranges of `x`.
void assign_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges, const at::Tensor& part);

}  // namespace tessera::parallel
