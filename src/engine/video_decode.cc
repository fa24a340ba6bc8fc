#include "engine/video_decode.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "comm/collectives.h"

namespace tessera::engine {
namespace {

// Gathers a tensor of each rank on rank 0; empty on others. `length(rank)` is the size of dimension `dim`,
// in which they may differ.
std::vector<at::Tensor> gather_all(const at::Tensor& own, int64_t dim,
                                   const std::function<int64_t(int64_t rank)>& length,
                                   const comm::Group& group) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; group.rank == 0 && rank < group.size; ++rank) {
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[static_cast<size_t>(dim)] = length(rank);
    parts.push_back(rank == 0 ? own : at::empty(sizes, own.options()));
  }
  if (group.size > 1) comm::gather(own, parts, 0, group);
  return parts;
}

class ClipDecoding {
 public:
  ClipDecoding(const models::VideoDecoder& decoder, const at::Tensor& z, int64_t frames,
               const comm::Group& group, const VideoDecodeOptions& options)
      : decoder_(decoder),
        z_(z),
        frames_(frames),
        group_(group),
        options_(options),
        cut_({.rows = z.size(2), .columns = z.size(3)}, parallel::GridAxis::kRows, 1, group.size) {}

  int64_t clips() const { return (frames_ + clip_.frames - 1) / clip_.frames; }

  // Decodes a clip for each rank, from `first` on.
  std::vector<at::Tensor> dealt(int64_t first) const {
    nn::Tokens whole(cut_.grid);
    const at::Tensor own = decode(first + group_.rank, {0, z_.size(2)}, whole);
    return gather_all(
        own, 0, [&](int64_t /*rank*/) { return own.size(0); }, group_);
  }

  // Decodes a clip, each rank some of its rows. Returns its frames on rank 0.
  std::vector<at::Tensor> divided(int64_t clip) const {
    nn::Tokens tokens(cut_, {.ring = group_, .all = group_});
    const at::Tensor own = decode(clip, cut_.part(0, group_.rank), tokens);
    const auto rows = [&](int64_t rank) { return cut_.part(0, rank).length * decoder_.scale_factor(); };
    const std::vector<at::Tensor> parts = gather_all(own, 1, rows, group_);
    if (parts.empty()) return {};
    return {parts.size() == 1 ? parts.front() : at::cat(parts, 1)};
  }

 private:
  at::Tensor decode(int64_t clip, const Range& rows, nn::Tokens& tokens) const {
    tokens.limit_convolutions(options_.blocks);
    const int64_t first = clip * clip_.latents;
    const at::Tensor latents =
        z_.narrow(0, first, std::min(clip_.latents, z_.size(0) - first)).narrow(2, rows.begin, rows.length);
    const int64_t frames = std::min(clip_.frames, frames_ - clip * clip_.frames);
    return options_.convert(decoder_.decode_clip(latents, frames, tokens)).contiguous();
  }

  const models::VideoDecoder& decoder_;
  const at::Tensor& z_;
  int64_t frames_;
  const comm::Group& group_;
  const VideoDecodeOptions& options_;
  parallel::Cut cut_;
  models::VideoDecoder::Clip clip_ = decoder_.clip();
};

}  // namespace

int64_t dealt_clips(int64_t frames, const models::VideoDecoder::Clip& clip, int64_t ranks) {
  return frames / clip.frames / ranks * ranks;
}

void decode_video(const models::VideoDecoder& decoder, const at::Tensor& z, int64_t frames,
                  const comm::Group& group, const VideoDecodeOptions& options,
                  const std::function<void(const at::Tensor& frames)>& take) {
  const ClipDecoding decoding(decoder, z, frames, group, options);
  const int64_t dealt = options.deals_clips ? dealt_clips(frames, decoder.clip(), group.size) : 0;
  for (int64_t clip = 0; clip < dealt; clip += group.size)
    for (const at::Tensor& of_clip : decoding.dealt(clip)) take(of_clip);
  for (int64_t clip = dealt; clip < decoding.clips(); ++clip)
    for (const at::Tensor& of_clip : decoding.divided(clip)) take(of_clip);
}

}  // namespace tessera::engine
