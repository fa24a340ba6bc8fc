#include "engine/references.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "media/resize.h"
#include "media/video_reader.h"

namespace tessera::engine {
namespace {

// More frames of a reference must be a mistake: they would take hours to encode.
constexpr int64_t kMostFrames = 16384;

}  // namespace

References::References(std::span<const Settings> requests, const models::VideoEncoder& encoder,
                       const models::LatentScale& scale)
    : requests_(requests), encoder_(encoder), scale_(scale) {
  for (const Settings& each : requests) {
    for (size_t prompt = 0; prompt < each.references.size(); ++prompt) {
      Video video;
      video.ranges = each.given[prompt];
      for (const std::string& path : each.references[prompt]) video.references.push_back(encode_file(path));
      videos_.insert(videos_.end(), static_cast<size_t>(each.request.num_images_per_prompt), video);
    }
  }
}

// Encodes and forgets the frames ([1, 3, H, W] each). Returns latents [C, R, h, w].
at::Tensor References::encode_clip(std::vector<at::Tensor>& frames) const {
  const at::Tensor all = at::concat(std::exchange(frames, {})).to(settings().request.device);
  return encoder_.encode(all).cpu().transpose(0, 1);
}

// Clips do not depend on each other, so only one is held.
at::Tensor References::encode_file(const std::string& path) const {
  const int64_t height = settings().model_height, width = settings().model_width;
  media::VideoReader reader(path);
  const bool is_still = reader.fps() == 0;
  std::vector<at::Tensor> frames, latents;
  for (int64_t count = 0; const std::optional<Image> frame = reader.next(); ++count) {
    if (count == kMostFrames) input_error(path, "has more than {} frames", kMostFrames);
    const at::Tensor covered = is_still ? media::to_tensor(media::cover_image(*frame, height, width))
                                        : media::cover_frame(*frame, height, width);
    frames.push_back(covered.unsqueeze(0));
    if (static_cast<int64_t>(frames.size()) == scale_.clip) latents.push_back(encode_clip(frames));
  }
  if (!frames.empty()) latents.push_back(encode_clip(frames));
  return at::concat(latents, 1);
}

int64_t References::first_needed() const {
  const int64_t of_clip = scale_.latent_frames(scale_.clip);
  const int64_t all = settings().latents.latent_frames;
  const int64_t first = all - *settings().request.condition_frame_length;
  return first / of_clip * scale_.clip;
}

void References::add_decoded(int64_t video, const at::Tensor& frames) {
  Video& part = videos_[static_cast<size_t>(video)];
  const int64_t first = std::clamp<int64_t>(first_needed() - part.decoded, 0, frames.size(0));
  part.decoded += frames.size(0);
  for (int64_t i = first; i < frames.size(0); ++i) part.last_frames.push_back(frames.narrow(0, i, 1));
}

// The whole part before is a reference, of which the first latent frames are never read.
void References::add_previous_part(Video& video, int64_t loop) const {
  const int64_t length = *settings().request.condition_frame_length;
  std::vector<at::Tensor> latents, clip;
  for (at::Tensor& frame : std::exchange(video.last_frames, {})) {
    clip.push_back(std::move(frame));
    if (static_cast<int64_t>(clip.size()) == scale_.clip) latents.push_back(encode_clip(clip));
  }
  if (!clip.empty()) latents.push_back(encode_clip(clip));
  video.decoded = 0;
  const at::Tensor end = at::concat(latents, 1);
  at::Tensor whole = at::zeros({end.size(0), settings().latents.latent_frames, end.size(2), end.size(3)});
  whole.narrow(1, whole.size(1) - end.size(1), end.size(1)).copy_(end);
  video.references.push_back(whole);
  video.ranges.push_back({.loop = loop,
                          .reference = static_cast<int64_t>(video.references.size()) - 1,
                          .reference_start = -length,
                          .target_start = 0,
                          .length = length,
                          .edit = *settings().request.condition_frame_edit});
}

GivenLatents References::given(int64_t loop) {
  const models::LatentShape& shape = settings().latents;
  const int64_t align = settings().request.align.value_or(0);
  std::vector<at::Tensor> z, masks, placed;
  for (Video& video : videos_) {
    if (loop > 0) add_previous_part(video, loop);
    at::Tensor latents =
        at::zeros({scale_.channels, shape.latent_frames, shape.latent_height, shape.latent_width});
    at::Tensor is_placed = at::zeros({shape.latent_frames});
    masks.push_back(place_references(video.ranges, loop, video.references,
                                     align > 0 ? std::optional(align) : std::nullopt, latents, is_placed));
    z.push_back(std::move(latents));
    placed.push_back(std::move(is_placed));
  }
  return {at::stack(z), at::stack(placed), at::stack(masks)};
}

}  // namespace tessera::engine
