#include "engine/local_latents.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::engine {

LocalLatents::LocalLatents(const at::Tensor& z, const DenoiserStage& stage, const parallel::Ranks& ranks)
    : stage_(stage),
      ranks_(ranks),
      sizes_(z.sizes().vec()),
      options_(z.options()),
      axes_(stage.latent_axes()),
      pictures_(ranks.data.part(z.size(0))) {
  for (const LatentAxis& axis : axes_)
    TESSERA_CHECK(axis.all == z.size(axis.dim), "{} lines for latents of {}", axis.all, z.size(axis.dim));
  for (int64_t patch = 0; patch < cut().patches; ++patch)
    latents_.push_back(select(z, {patch, 1}).contiguous());
}

const LatentAxis& LocalLatents::of(parallel::GridAxis axis) const {
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const auto& one) { return one.axis == axis; });
  TESSERA_CHECK(found != axes_.end(), "images have no frames to cut");
  return *found;
}

std::vector<int64_t> LocalLatents::line_counts() const {
  TESSERA_CHECK(cut().patches == 1, "lines of pictures that come in {} patches", cut().patches);
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < ranks_.sequence.size; ++rank)
    counts.push_back(lines(of(cut().rank_axis), {0, 1}, rank).front().length);
  return counts;
}

at::Tensor LocalLatents::joined(Range patches) const {
  return join(at::TensorList(latents_).slice(static_cast<size_t>(patches.begin),
                                             static_cast<size_t>(patches.length)));
}

at::Tensor LocalLatents::join(at::TensorList by_patch) const {
  return by_patch.size() == 1 ? by_patch[0] : at::concat(by_patch, of(cut().patch_axis).dim);
}

std::vector<at::Tensor> LocalLatents::split(const at::Tensor& x, Range patches) const {
  const int64_t dim = of(cut().patch_axis).dim;
  std::vector<at::Tensor> parts;
  int64_t line = 0;
  for (int64_t i = patches.begin; i < patches.end(); ++i) {
    const int64_t length = patch(i).size(dim);
    parts.push_back(x.narrow(dim, line, length));
    line += length;
  }
  TESSERA_CHECK(line == x.size(dim), "{} lines for {}", x.size(dim), line);
  return parts;
}

at::Tensor LocalLatents::select(const at::Tensor& x, Range patches) const {
  at::Tensor own = x.narrow(0, pictures_.begin, pictures_.length);
  for (const LatentAxis& axis : axes_)
    own = parallel::select_ranges(own, axis.dim, lines(axis, patches, stage_.sequence_rank()));
  return own;
}

at::Tensor LocalLatents::select_frames(const at::Tensor& frames, Range patches) const {
  return parallel::select_ranges(frames.narrow(0, pictures_.begin, pictures_.length).to(options_.device()), 1,
                                 lines(of(parallel::GridAxis::kFrames), patches, stage_.sequence_rank()));
}

std::vector<int64_t> LocalLatents::sizes_of(Range patches, int64_t rank) const {
  std::vector<int64_t> sizes = sizes_;
  sizes[0] = pictures_.length;
  for (const LatentAxis& axis : axes_) {
    int64_t& length = sizes[static_cast<size_t>(axis.dim)] = 0;
    for (const Range& range : lines(axis, patches, rank)) length += range.length;
  }
  return sizes;
}

at::Tensor LocalLatents::empty(Range patches) const {
  return at::empty(sizes_of(patches, stage_.sequence_rank()), options_);
}

at::Tensor LocalLatents::gather(at::Tensor own) const {
  const comm::Group& group = ranks_.sequence;
  const Range all = cut().all_patches();
  const LatentAxis& axis = of(cut().rank_axis);
  std::vector<Range> parts;  // by rank, one after the other
  for (int64_t rank = 0; rank < group.size; ++rank)
    parts.push_back(
        {parts.empty() ? 0 : parts.back().end(), sizes_of(all, rank)[static_cast<size_t>(axis.dim)]});
  at::Tensor by_rank = comm::gather(std::exchange(own, {}), axis.dim, parts, 0, group);
  if (!by_rank.defined() || cut().patches == 1 || cut().patch_axis != cut().rank_axis) return by_rank;
  at::Tensor z = at::empty_like(by_rank);
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const Range& part = parts[static_cast<size_t>(rank)];
    parallel::assign_ranges(z, axis.dim, lines(axis, all, rank),
                            by_rank.narrow(axis.dim, part.begin, part.length));
  }
  return z;
}

}  // namespace tessera::engine
