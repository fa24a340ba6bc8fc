#include "engine/video_decode.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "core/device.h"
#include "core/log.h"
#include "engine/decode.h"
#include "engine/overflow.h"

namespace tessera::engine {
namespace {

class ClipDecoding {
 public:
  ClipDecoding(const models::Decoder& decoder, const at::Tensor& z, int64_t frames, const comm::Group& group,
               const VideoDecodeOptions& options)
      : decoder_(decoder),
        z_(z),
        frames_(frames),
        group_(group),
        options_(options),
        blocks_(options.block_rows ? ops::ConvBlocks{.rows = *options.block_rows}
                                   : automatic_blocks(z.device(), group.size)),
        cut_({.rows = z.size(2), .columns = z.size(3)}, parallel::GridAxis::kRows, 1, group.size, 1,
             group.shares) {}

  int64_t clips() const { return count_clips(frames_, clip_); }
  bool depend_on_each_other() const { return memory_ != nullptr; }

  // Decodes a round of clips from `first` on, each on one rank. Returns the frames of all clips on rank 0.
  at::Tensor dealt(int64_t first) const {
    const std::vector<Range> parts = group_.parts(group_.round());
    const Range& mine = parts[static_cast<size_t>(group_.rank)];
    std::vector<at::Tensor> own;
    for (int64_t clip = mine.begin; clip < mine.end(); ++clip) {
      nn::Tokens whole(cut_.grid);
      own.push_back(decode(first + clip, {0, z_.size(2)}, whole));
    }
    const at::Tensor frames = own.size() == 1 ? own.front() : at::concat(own);
    return comm::gather(frames, /*dim=*/0, times(parts, clip_.frames), 0, group_);
  }

  // Decodes a clip of which each rank decodes some rows. Returns its frames on rank 0.
  at::Tensor divided(int64_t clip) const {
    nn::Tokens tokens(cut_, {.ring = group_, .all = group_});
    const at::Tensor own = decode(clip, cut_.part(0, group_.rank), tokens);
    std::vector<Range> rows;
    for (int64_t rank = 0; rank < group_.size; ++rank)
      rows.push_back(times(cut_.part(0, rank), decoder_.scale_factor()));
    return comm::gather(own, /*dim=*/1, rows, 0, group_);
  }

 private:
  at::Tensor decode(int64_t clip, const Range& rows, nn::Tokens& tokens) const {
    tokens.limit_convolutions(blocks_);
    const int64_t first = clip * clip_.latents;
    const at::Tensor latents =
        z_.narrow(0, first, std::min(clip_.latents, z_.size(0) - first)).narrow(2, rows.begin, rows.length);
    const int64_t frames = frames_of_clip(clip, frames_, clip_).length;
    return options_.convert(decoder_.decode_clip(latents, frames, tokens, memory_.get())).contiguous();
  }

  const models::Decoder& decoder_;
  const at::Tensor& z_;
  int64_t frames_;
  const comm::Group& group_;
  const VideoDecodeOptions& options_;
  ops::ConvBlocks blocks_;
  parallel::Cut cut_;
  models::Decoder::Clip clip_ = decoder_.clip();
  std::unique_ptr<models::ClipMemory> memory_ = decoder_.begin_video();  // of this rank's rows
};

// Machines and devices differ in memory, but all ranks must decode in the same way.
bool have_memory_for_clips(const models::Decoder& decoder, const at::Tensor& z, const comm::Group& group,
                           std::optional<int64_t> memory) {
  const bool has = has_memory_for_clips(decoder, z, group.size, memory ? *memory : memory_of(z.device()));
  const at::Tensor count = comm::all_reduce(at::full({1}, has ? 1 : 0, z.options().dtype(at::kFloat)), group);
  return count.item<float>() == static_cast<float>(group.size);
}

}  // namespace

at::Tensor to_frames(const at::Tensor& x, at::ScalarType dtype) {
  at::Tensor unit = x.clamp(-1, 1).add(1).div(2);
  if (const at::Tensor has_nan = nan_mask(unit).any(); !x.is_meta() && has_nan.item<bool>()) {
    log_warning("the video holds numbers that overflowed in the decoder and are black; {}",
                overflow_advice(dtype));
    unit = unit.nan_to_num(0);
  }
  const at::Tensor pixels = unit.mul(255).add(0.5).to(at::kByte).permute({0, 2, 3, 1}).contiguous();
  return pixels.is_meta() ? pixels : pixels.cpu();
}

bool has_memory_for_clips(const models::Decoder& decoder, const at::Tensor& z, int64_t ranks,
                          int64_t memory) {
  const int64_t sharers = is_for_cpu(z.device()) ? ranks : 1;
  return decoder.clip_bytes(z.size(2), z.size(3)) <= memory / 2 / sharers;
}

Range frames_of_clip(int64_t index, int64_t frames, const models::Decoder::Clip& clip) {
  const int64_t first = clip.first_frames.value_or(clip.frames);
  const auto begin = [&](int64_t i) { return i == 0 ? 0 : first + (i - 1) * clip.frames; };
  return overlap({begin(index), begin(index + 1) - begin(index)}, {0, frames});
}

int64_t count_clips(int64_t frames, const models::Decoder::Clip& clip) {
  const int64_t rest = frames - clip.first_frames.value_or(clip.frames);
  return rest <= 0 ? 1 : 1 + (rest + clip.frames - 1) / clip.frames;
}

int64_t dealt_clips(int64_t frames, const models::Decoder::Clip& clip, int64_t round) {
  return frames / clip.frames / round * round;
}

void decode_video(const models::Decoder& decoder, const at::Tensor& z, int64_t frames,
                  const comm::Group& group, const VideoDecodeOptions& options,
                  const std::function<void(const at::Tensor& frames)>& take) {
  const ClipDecoding decoding(decoder, z, frames, group, options);
  const bool deals =
      options.deals_clips ? *options.deals_clips : have_memory_for_clips(decoder, z, group, options.memory);
  const int64_t round = group.round();
  const int64_t dealt =
      deals && !decoding.depend_on_each_other() ? dealt_clips(frames, decoder.clip(), round) : 0;
  const auto take_clips = [&](const at::Tensor& gathered) {
    if (!gathered.defined()) return;
    for (const at::Tensor& clip : gathered.split(decoder.clip().frames)) take(clip);
  };
  const auto begin = [&] {
    if (options.before_clips) options.before_clips();
  };
  for (int64_t clip = 0; clip < dealt; clip += round) {
    begin();
    take_clips(decoding.dealt(clip));
  }
  for (int64_t clip = dealt; clip < decoding.clips(); ++clip) {
    begin();
    take_clips(decoding.divided(clip));
  }
}

}  // namespace tessera::engine
