#include "engine/local_latents.h"

#include <ATen/Functions.h>

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::engine {

LocalLatents::LocalLatents(const at::Tensor& z, const DenoiserStage& stage, const parallel::Ranks& ranks)
    : stage_(stage),
      ranks_(ranks),
      sizes_(z.sizes().vec()),
      options_(z.options()),
      axis_(stage.latent_axis()),
      pictures_(ranks.data.part(z.size(0))) {
  TESSERA_CHECK(axis_.all == z.size(axis_.dim), "{} lines for latents of {}", axis_.all, z.size(axis_.dim));
  for (int64_t patch = 0; patch < cut().patches; ++patch)
    latents_.push_back(select(z, {patch, 1}).contiguous());
}

std::vector<int64_t> LocalLatents::line_counts() const {
  TESSERA_CHECK(cut().patches == 1, "lines of pictures that come in {} patches", cut().patches);
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < ranks_.sequence.size; ++rank)
    counts.push_back(lines({0, 1}, rank).front().length);
  return counts;
}

at::Tensor LocalLatents::joined(Range patches) const {
  if (patches.length == 1) return patch(patches.begin);
  return at::cat(
      at::TensorList(latents_).slice(static_cast<size_t>(patches.begin), static_cast<size_t>(patches.length)),
      axis_.dim);
}

std::vector<at::Tensor> LocalLatents::split(const at::Tensor& x, Range patches) const {
  std::vector<at::Tensor> parts;
  int64_t line = 0;
  for (int64_t i = patches.begin; i < patches.end(); ++i) {
    const int64_t length = patch(i).size(axis_.dim);
    parts.push_back(x.narrow(axis_.dim, line, length));
    line += length;
  }
  TESSERA_CHECK(line == x.size(axis_.dim), "{} lines for {}", x.size(axis_.dim), line);
  return parts;
}

at::Tensor LocalLatents::select(const at::Tensor& x, Range patches) const {
  return parallel::select_ranges(x.narrow(0, pictures_.begin, pictures_.length), axis_.dim,
                                 lines(patches, stage_.sequence_rank()));
}

at::Tensor LocalLatents::select_frames(const at::Tensor& frames, Range patches) const {
  at::Tensor own = frames.narrow(0, pictures_.begin, pictures_.length).to(options_.device());
  if (cut().axis != parallel::GridAxis::kFrames) return own;
  return parallel::select_ranges(own, 1, lines(patches, stage_.sequence_rank()));
}

std::vector<int64_t> LocalLatents::sizes_of(Range patches, int64_t rank) const {
  std::vector<int64_t> sizes = sizes_;
  sizes[0] = pictures_.length;
  int64_t& length = sizes[static_cast<size_t>(axis_.dim)] = 0;
  for (const Range& range : lines(patches, rank)) length += range.length;
  return sizes;
}

at::Tensor LocalLatents::empty(Range patches) const {
  return at::empty(sizes_of(patches, stage_.sequence_rank()), options_);
}

at::Tensor LocalLatents::gather() const {
  const comm::Group& group = ranks_.sequence;
  const Range all = cut().all_patches();
  std::vector<Range> parts;  // by rank, one behind the other
  for (int64_t rank = 0; rank < group.size; ++rank) {
    int64_t length = 0;
    for (const Range& range : lines(all, rank)) length += range.length;
    parts.push_back({parts.empty() ? 0 : parts.back().end(), length});
  }
  const at::Tensor by_rank = comm::gather(joined(all), axis_.dim, parts, 0, group);
  if (!by_rank.defined() || cut().patches == 1) return by_rank;
  const at::Tensor z = at::empty_like(by_rank);
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const Range& part = parts[static_cast<size_t>(rank)];
    parallel::assign_ranges(z, axis_.dim, lines(all, rank),
                            by_rank.narrow(axis_.dim, part.begin, part.length));
  }
  return z;
}

}  // namespace tessera::engine
