#include "parallel/grid.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/error.h"

namespace tessera::parallel {
namespace {

// The part `index` of `parts` of `whole`, split in units of `unit` lines; the last unit may be short.
Range in_units(const Range& whole, int64_t index, int64_t parts, int64_t unit) {
  const Range units = split_evenly((whole.length + unit - 1) / unit, index, parts);
  const int64_t begin = std::min(units.begin * unit, whole.length);
  return {whole.begin + begin, std::min(units.end() * unit, whole.length) - begin};
}

}  // namespace

Cut::Cut(Grid all, GridAxis cut_axis, int64_t patch_count, int64_t rank_count, int64_t unit_lines)
    : grid(all), axis(cut_axis), patches(patch_count), ranks(rank_count), unit(unit_lines) {
  TESSERA_CHECK(unit >= 1 && patches >= 1 && ranks >= 1 && patches <= (lines() + unit - 1) / unit,
                "{} patches on {} ranks, {} lines in units of {}", patches, ranks, lines(), unit);
}

Cut Cut::coarser() const {
  TESSERA_CHECK(axis == GridAxis::kRows && patches == 1 && (unit % 2 == 0 || ranks == 1),
                "a cut in units of {} rows cannot be made coarser", unit);
  return {{grid.frames, (grid.rows + 1) / 2, (grid.columns + 1) / 2},
          axis,
          1,
          ranks,
          std::max<int64_t>(unit / 2, 1)};
}

Cut Cut::finer() const {
  TESSERA_CHECK(axis == GridAxis::kRows && patches == 1, "only a cut along rows can be made finer");
  return {{grid.frames, 2 * grid.rows, 2 * grid.columns}, axis, 1, ranks, 2 * unit};
}

Range Cut::part(int64_t patch, int64_t rank) const {
  return in_units(in_units({0, lines()}, patch, patches, unit), rank, ranks, unit);
}

std::vector<Range> Cut::parts(Range run, int64_t rank) const {
  std::vector<Range> all;
  for (int64_t patch = run.begin; patch < run.end(); ++patch) all.push_back(part(patch, rank));
  return all;
}

Grid Cut::held(Range run, int64_t rank) const {
  int64_t count = 0;
  for (const Range& lines : parts(run, rank)) count += lines.length;
  Grid own = grid;
  (axis == GridAxis::kRows ? own.rows : own.frames) = count;
  return own;
}

std::vector<Range> Cut::tokens(Range run, int64_t rank) const {
  const int64_t line = axis == GridAxis::kRows ? grid.columns : grid.rows * grid.columns;
  const int64_t outer = axis == GridAxis::kRows ? grid.frames : 1;  // how often the lines recur
  std::vector<Range> all;
  for (int64_t i = 0; i < outer; ++i) {
    for (const Range& lines : parts(run, rank))
      all.push_back({i * this->lines() * line + lines.begin * line, lines.length * line});
  }
  return all;
}

std::vector<Range> Cut::tokens_within(Range run, int64_t patch, int64_t rank) const {
  const int64_t outer = axis == GridAxis::kRows ? grid.frames : 1;
  const auto count = [&](Range patches_of) { return held(patches_of, rank).tokens() / outer; };
  std::vector<Range> all;
  for (int64_t i = 0; i < outer; ++i)
    all.push_back({i * count(run) + count({run.begin, patch - run.begin}), count({patch, 1})});
  return all;
}

at::Tensor select_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges) {
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges) parts.push_back(x.narrow(dim, range.begin, range.length));
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

void assign_ranges(const at::Tensor& x, int64_t dim, std::span<const Range> ranges, const at::Tensor& part) {
  int64_t from = 0;
  for (const Range& range : ranges) {
    x.narrow(dim, range.begin, range.length).copy_(part.narrow(dim, from, range.length));
    from += range.length;
  }
}

}  // namespace tessera::parallel
