#include "nn/token_sequence.h"

#include <utility>

#include "core/error.h"

namespace tessera::nn {

TokenSequence::TokenSequence(const parallel::Cut& cut, const TokenGroups& groups, Range run, Over over,
                             std::vector<int64_t> beside)
    : cut_(cut), groups_(groups), run_(run), over_(over), beside_(std::move(beside)) {
  TESSERA_CHECK(beside_.empty() || over == Over::kAll, "{} sequences beside the grid lie in no frame",
                beside_.size());
}

int64_t TokenSequence::length(int64_t part) const {
  return length(run_, part);
}

int64_t TokenSequence::length(Range patches, int64_t part) const {
  const parallel::Grid held = cut_.held(patches, part);
  if (over_ == Over::kTemporal) return held.frames;
  if (over_ == Over::kSpatial) return held.rows * held.columns;
  int64_t sum = held.tokens();
  for (const int64_t count : beside_) sum += beside(count, patches, part);
  return sum;
}

int64_t TokenSequence::beside(int64_t count, Range patches, int64_t part) const {
  int64_t sum = 0;
  for (int64_t patch = patches.begin; patch < patches.end(); ++patch)
    sum += cut_.part_beside(count, patch, part).length;
  return sum;
}

int64_t TokenSequence::begin_of_patch(int64_t patch, int64_t part) const {
  int64_t before = 0;
  for (int64_t i = 0; i < groups_.all.size; ++i) before += length({0, patch}, i);
  for (int64_t i = 0; i < part; ++i) before += length({patch, 1}, i);
  return before;
}

std::vector<Range> TokenSequence::within(int64_t patch, int64_t part) const {
  if (over_ == Over::kAll) {
    std::vector<Range> ranges = cut_.tokens_within(run_, patch, part);
    int64_t begin = cut_.held(run_, part).tokens();
    for (const int64_t count : beside_) {
      const int64_t before = beside(count, {run_.begin, patch - run_.begin}, part);
      if (const int64_t own = beside(count, {patch, 1}, part); own > 0)
        ranges.push_back({begin + before, own});
      begin += beside(count, run_, part);
    }
    return ranges;
  }
  return {{length({run_.begin, patch - run_.begin}, part), length({patch, 1}, part)}};
}

std::vector<int64_t> TokenSequence::of_ulysses() const {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < groups_.ulysses.size; ++i)
    lengths.push_back(length(groups_.part(groups_.own_ulysses_group(), i)));
  return lengths;
}

std::vector<Range> TokenSequence::of_gather() const {
  return of_groups(groups_.ring.rank * groups_.gather.size, groups_.gather.size, 1);
}

std::vector<Range> TokenSequence::of_ring() const {
  return of_groups(0, groups_.ring.size, groups_.gather.size);
}

std::vector<Range> TokenSequence::of_groups(int64_t first, int64_t ranges, int64_t count) const {
  std::vector<Range> parts;
  for (int64_t i = 0; i < ranges; ++i) {
    const int64_t begin = groups_.part(first + i * count, 0), end = groups_.part(first + (i + 1) * count, 0);
    int64_t all = 0;
    for (int64_t part = begin; part < end; ++part) all += length(part);
    parts.push_back({parts.empty() ? 0 : parts.back().end(), all});
  }
  return parts;
}

}  // namespace tessera::nn
