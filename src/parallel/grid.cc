#include "parallel/grid.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/error.h"

namespace tessera::parallel {
namespace {

// Returns part `index` of `parts` of `whole`, split in units of `unit` lines; the last unit may be short.
Range in_units(const Range& whole, int64_t index, int64_t parts, int64_t unit, const Shares& shares = {}) {
  const Range units = split_by_shares((whole.length + unit - 1) / unit, index, parts, shares);
  const int64_t begin = std::min(units.begin * unit, whole.length);
  return {whole.begin + begin, std::min(units.end() * unit, whole.length) - begin};
}

}  // namespace

Cut::Cut(Grid all, GridAxis axis_of_patches, int64_t patch_count, GridAxis axis_of_ranks, int64_t rank_count,
         int64_t unit_lines, Shares shares_of_ranks)
    : grid(all),
      patch_axis(axis_of_patches),
      rank_axis(axis_of_ranks),
      patches(patch_count),
      ranks(rank_count),
      unit(unit_lines),
      shares(std::move(shares_of_ranks)) {
  TESSERA_CHECK(unit >= 1 && patches >= 1 && ranks >= 1 && patches <= (lines(patch_axis) + unit - 1) / unit,
                "{} patches on {} ranks, {} lines in units of {}", patches, ranks, lines(patch_axis), unit);
}

Cut Cut::coarser() const {
  TESSERA_CHECK(rank_axis == GridAxis::kRows && patches == 1 && (unit % 2 == 0 || ranks == 1),
                "a cut in units of {} rows cannot be made coarser", unit);
  return {{grid.frames, (grid.rows + 1) / 2, (grid.columns + 1) / 2},
          rank_axis,
          1,
          ranks,
          std::max<int64_t>(unit / 2, 1),
          shares};
}

Cut Cut::finer() const {
  TESSERA_CHECK(rank_axis == GridAxis::kRows && patches == 1, "only a cut along rows can be made finer");
  return {{grid.frames, 2 * grid.rows, 2 * grid.columns}, rank_axis, 1, ranks, 2 * unit, shares};
}

Range Cut::part(int64_t patch, int64_t rank) const {
  Range all{0, lines(rank_axis)};
  if (rank_axis == patch_axis) all = in_units(all, patch, patches, unit);
  return in_units(all, rank, ranks, unit, shares);
}

Range Cut::part_beside(int64_t count, int64_t patch, int64_t rank) const {
  return in_units(in_units({0, count}, patch, patches, 1), rank, ranks, 1, shares);
}

std::vector<Range> Cut::lines_of(GridAxis axis, Range run, int64_t rank) const {
  if (axis != patch_axis) return {axis == rank_axis ? part(run.begin, rank) : Range{0, lines(axis)}};
  std::vector<Range> all;
  for (int64_t patch = run.begin; patch < run.end(); ++patch)
    all.push_back(axis == rank_axis ? part(patch, rank) : in_units({0, lines(axis)}, patch, patches, unit));
  return all;
}

Grid Cut::held(Range run, int64_t rank) const {
  const auto count = [&](GridAxis axis) {
    int64_t sum = 0;
    for (const Range& range : lines_of(axis, run, rank)) sum += range.length;
    return sum;
  };
  return {count(GridAxis::kFrames), count(GridAxis::kRows), grid.columns};
}

std::vector<Range> Cut::tokens(Range run, int64_t rank) const {
  const std::vector<Range> rows = lines_of(GridAxis::kRows, run, rank);
  const int64_t of_frame = grid.rows * grid.columns;
  std::vector<Range> all;
  for (const Range& frames : lines_of(GridAxis::kFrames, run, rank)) {
    if (rows.front().length == grid.rows) {
      all.push_back(times(frames, of_frame));
      continue;
    }
    for (int64_t frame = frames.begin; frame < frames.end(); ++frame) {
      for (const Range& range : rows)
        all.push_back({frame * of_frame + range.begin * grid.columns, range.length * grid.columns});
    }
  }
  return all;
}

std::vector<Range> Cut::tokens_within(Range run, int64_t patch, int64_t rank) const {
  const Grid before = held({run.begin, patch - run.begin}, rank), own = held({patch, 1}, rank);
  if (patch_axis == GridAxis::kFrames) return {{before.tokens(), own.tokens()}};
  const Grid all = held(run, rank);
  std::vector<Range> ranges;
  for (int64_t frame = 0; frame < all.frames; ++frame)
    ranges.push_back({(frame * all.rows + before.rows) * grid.columns, own.rows * grid.columns});
  return ranges;
}

at::Tensor select_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges) {
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges) parts.push_back(x.narrow(dim, range.begin, range.length));
  return parts.size() == 1 ? parts[0] : at::concat(parts, dim);
}

void assign_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges, const at::Tensor& part) {
  int64_t from = 0;
  for (const Range& range : ranges) {
    x.narrow(dim, range.begin, range.length).copy_(part.narrow(dim, from, range.length));
    from += range.length;
  }
}

}  // namespace tessera::parallel
