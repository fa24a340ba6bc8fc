#include "engine/references.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "media/resize.h"
#include "media/video_reader.h"

namespace tessera::engine {
namespace {

// A reference with more frames must be a mistake, because encoding it would take hours.
constexpr int64_t kMostFrames = 16384;

// Returns the nearest multiple of `unit` below `end`; if two are equally near, the lower one.
int64_t aligned(int64_t value, int64_t unit, int64_t end) {
  int64_t multiple = value / unit;
  if (2 * (value % unit) > unit && multiple < end / unit - 1) ++multiple;
  return multiple * unit;
}

// Returns where a range starts among `frames` frames.
int64_t start_of(int64_t start, int64_t frames, std::optional<int64_t> align, const char* of) {
  const int64_t from_begin = start < 0 ? frames + start : start;
  if (from_begin < 0 || from_begin >= frames)
    usage_error(field("mask_strategy"), "{} is not a frame of {}, which has {}", start, of,
                counted(frames, "latent frame"));
  return align ? aligned(from_begin, *align, frames) : from_begin;
}

}  // namespace

int64_t reference_of(const GivenRange& range, int64_t references) {
  const int64_t number = range.reference < 0 ? references + range.reference : range.reference;
  return number < references ? number : -1;
}

Placement placement_of(const GivenRange& range, int64_t from_frames, int64_t frames,
                       std::optional<int64_t> align) {
  const int64_t from = start_of(range.reference_start, from_frames, align, "the reference");
  const int64_t to = start_of(range.target_start, frames, align, "the video");
  return {.from = from, .to = to, .length = std::min({range.length, frames - to, from_frames - from})};
}

at::Tensor place_references(const std::vector<GivenRange>& ranges, int64_t loop,
                            const std::vector<at::Tensor>& references, std::optional<int64_t> align,
                            at::Tensor& z, at::Tensor& placed) {
  const int64_t frames = z.size(1);
  at::Tensor mask = at::ones({frames}, at::kFloat);
  for (const GivenRange& range : ranges) {
    if (range.loop != loop) continue;
    const auto count = static_cast<int64_t>(references.size());
    const int64_t number = reference_of(range, count);
    if (number < 0)
      usage_error(field("mask_strategy"), "there is no reference {}; there are {}, counted from 0",
                  range.reference, count);
    const at::Tensor& reference = references[static_cast<size_t>(number)];
    const auto [from, to, length] = placement_of(range, reference.size(1), frames, align);
    z.narrow(1, to, length).copy_(reference.narrow(1, from, length));
    placed.narrow(0, to, length).fill_(1);
    mask.narrow(0, to, length).fill_(range.edit);
  }
  return mask;
}

References::References(std::span<const Settings> requests, const models::LatentScale& scale)
    : requests_(requests), scale_(scale) {
  for (const Settings& each : requests) {
    for (size_t prompt = 0; prompt < each.video.references.size(); ++prompt) {
      Video video;
      video.paths = each.video.references[prompt];
      video.ranges = each.video.given[prompt];
      add_ranges(video);
      videos_.insert(videos_.end(), static_cast<size_t>(each.request.num_images_per_prompt), video);
    }
  }
  for (auto& [path, file] : files_) examine(path, file);
}

std::optional<int64_t> References::align() const {
  const int64_t align = settings().request.video.align.value_or(0);
  return align > 0 ? std::optional(align) : std::nullopt;
}

void References::add_ranges(const Video& video) {
  for (const std::string& path : video.paths) files_[path];
  const auto files = static_cast<int64_t>(video.paths.size());
  for (const GivenRange& range : video.ranges) {
    const int64_t number = reference_of(range, files + range.loop);
    if (number < files) {
      files_[video.paths[static_cast<size_t>(number)]].ranges.push_back(range);
    } else {
      takes_parts_ = true;
    }
  }
}

int64_t References::frames_to_count(const GivenRange& range) const {
  if (range.reference_start < 0) return kMostFrames + 1;
  // A start moves by less than the alignment, and moves up only if a whole multiple follows.
  const int64_t unit = align().value_or(0);
  const int64_t length = std::min(range.length, settings().latents.latent_frames);
  const int64_t latents = std::min(range.reference_start, kMostFrames) + unit + std::max(unit, length);
  return std::min((latents / clip_latents() + 1) * scale_.clip, kMostFrames + 1);
}

void References::examine(const std::string& path, File& file) const {
  int64_t most = 0;
  for (const GivenRange& range : file.ranges) most = std::max(most, frames_to_count(range));
  media::VideoReader reader(path);
  while (file.frames < most && reader.skip()) ++file.frames;
  if (file.frames > kMostFrames) input_error(path, "has more than {} frames", kMostFrames);
  const int64_t frames = scale_.latent_frames(file.frames), all = settings().latents.latent_frames;
  for (const GivenRange& range : file.ranges) {
    const auto [from, to, length] = placement_of(range, frames, all, align());
    const int64_t wanted = std::min(range.length, all - to);
    if (length < wanted)
      log_warning("[{}] has {} of the {} latent frames that {} takes of it", path, length, wanted,
                  field("mask_strategy"));
    for (int64_t i = from; i < from + length; ++i) file.clips.insert(i / clip_latents());
  }
}

// Encodes the frames ([1, 3, H, W] each) and frees them. Returns latents [C, R, h, w].
at::Tensor References::encode_clip(std::vector<at::Tensor>& frames, const models::Encoder& encoder) const {
  const at::Tensor all = at::concat(std::exchange(frames, {})).to(settings().request.device);
  return encoder.encode(all).cpu().transpose(0, 1);
}

// Clips do not depend on each other, so only one is held at a time.
at::Tensor References::encode_file(const std::string& path, const File& file,
                                   const models::Encoder& encoder) const {
  const int64_t height = settings().model_height, width = settings().model_width;
  media::VideoReader reader(path);
  const bool is_still = reader.fps() == 0;
  at::Tensor latents;
  int64_t read = 0;
  for (const int64_t clip : file.clips) {
    const int64_t begin = clip * scale_.clip, end = std::min(begin + scale_.clip, file.frames);
    for (; read < begin && reader.skip(); ++read) {
    }
    std::vector<at::Tensor> frames;
    for (; read < end; ++read) {
      const std::optional<Image> frame = reader.next();
      if (!frame) input_error(path, "has fewer frames than before the run; it was changed");
      const at::Tensor covered = is_still ? media::to_tensor(media::cover_image(*frame, height, width))
                                          : media::cover_frame(*frame, reader.pixel_aspect(), height, width);
      frames.push_back(covered.unsqueeze(0));
    }
    const at::Tensor encoded = encode_clip(frames, encoder);
    if (!latents.defined())
      latents =
          at::zeros({encoded.size(0), scale_.latent_frames(file.frames), encoded.size(2), encoded.size(3)});
    latents.narrow(1, clip * clip_latents(), encoded.size(1)).copy_(encoded);
  }
  return latents;
}

int64_t References::first_needed() const {
  if (takes_parts_) return 0;
  const int64_t all = settings().latents.latent_frames;
  const int64_t first = all - *settings().request.video.condition_frame_length;
  return first / clip_latents() * scale_.clip;
}

void References::add_decoded(int64_t video, const at::Tensor& frames) {
  Video& part = videos_[static_cast<size_t>(video)];
  const int64_t first = std::clamp<int64_t>(first_needed() - part.decoded, 0, frames.size(0));
  part.decoded += frames.size(0);
  for (int64_t i = first; i < frames.size(0); ++i) part.last_frames.push_back(frames.narrow(0, i, 1));
}

// The whole previous part is a reference, whose first latent frames are never read.
void References::add_previous_part(Video& video, int64_t loop, const models::Encoder& encoder) const {
  const int64_t length = *settings().request.video.condition_frame_length;
  std::vector<at::Tensor> latents, clip;
  for (at::Tensor& frame : std::exchange(video.last_frames, {})) {
    clip.push_back(std::move(frame));
    if (static_cast<int64_t>(clip.size()) == scale_.clip) latents.push_back(encode_clip(clip, encoder));
  }
  if (!clip.empty()) latents.push_back(encode_clip(clip, encoder));
  video.decoded = 0;
  const at::Tensor end = at::concat(latents, 1);
  at::Tensor whole = at::zeros({end.size(0), settings().latents.latent_frames, end.size(2), end.size(3)});
  whole.narrow(1, whole.size(1) - end.size(1), end.size(1)).copy_(end);
  video.parts.push_back(whole);
  video.ranges.push_back({.loop = loop,
                          .reference = -1,
                          .reference_start = -length,
                          .target_start = 0,
                          .length = length,
                          .edit = *settings().request.video.condition_frame_edit});
}

GivenLatents References::given(int64_t loop, const models::Encoder& encoder) {
  if (loop == 0) {
    for (auto& [path, file] : files_) file.latents = encode_file(path, file, encoder);
  }
  const models::LatentShape& shape = settings().latents;
  std::vector<at::Tensor> z, masks, placed;
  for (Video& video : videos_) {
    if (loop > 0) add_previous_part(video, loop, encoder);
    std::vector<at::Tensor> references;
    for (const std::string& path : video.paths) references.push_back(files_.at(path).latents);
    references.insert(references.end(), video.parts.begin(), video.parts.end());
    at::Tensor latents =
        at::zeros({scale_.channels, shape.latent_frames, shape.latent_height, shape.latent_width});
    at::Tensor is_placed = at::zeros({shape.latent_frames});
    masks.push_back(place_references(video.ranges, loop, references, align(), latents, is_placed));
    z.push_back(std::move(latents));
    placed.push_back(std::move(is_placed));
  }
  return {at::stack(z), at::stack(placed), at::stack(masks)};
}

}  // namespace tessera::engine
