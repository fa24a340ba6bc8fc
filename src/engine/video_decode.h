// Decodes the latents of a video, a few clips at a time.
//
// Shapes: T latent frames, F frames, C latent channels, h x w latent size, H x W frame size.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "comm/group.h"
#include "models/family.h"

namespace tessera::engine {

// Converts frames [F, 3, H, W] in [-1, 1] (clamped here) to 8 bits [F, H, W, 3], on the CPU, rounding half up
// as Open-Sora does; a meta tensor gives a meta tensor. NaN becomes black with a warning, whose advice
// depends on the decoder's `dtype`.
at::Tensor to_frames(const at::Tensor& x, at::ScalarType dtype);

struct VideoDecodeOptions {
  // Converts frames [F, 3, H', W] in [-1, 1], all rows or some, to the form that ranks send and `take`
  // receives, [F, H', W, ...].
  std::function<at::Tensor(const at::Tensor& frames)> convert;
  std::optional<int64_t> block_rows = {};  // as in DecodeOptions
  // Ranks take whole clips while there are enough for all of them. This saves the messages between
  // neighbouring rows, but each rank needs as much memory as a single rank would; the default is to do it if
  // every rank has_memory_for_clips().
  std::optional<bool> deals_clips = {};
  // Called on every rank before each clip, or each round of dealt clips; may throw on all.
  std::function<void()> before_clips = {};
  std::optional<int64_t> memory = {};  // of this rank's machine or device, in bytes; memory_of() if empty
};

// Whether a clip of z on each of `ranks` ranks, which share the memory of a machine or have a device each,
// takes at most half of that memory.
bool has_memory_for_clips(const models::Decoder& decoder, const at::Tensor& z, int64_t ranks, int64_t memory);

// Returns the frames of a clip of a video of `frames` frames, and how many clips there are.
Range frames_of_clip(int64_t index, int64_t frames, const models::Decoder::Clip& clip);
int64_t count_clips(int64_t frames, const models::Decoder::Clip& clip);

// Returns how many of the first clips of a video of `frames` frames, which do not depend on each other, are
// decoded whole, each by one rank: as many rounds of `round` full-length clips (comm::Group::round()) as
// there are. The ranks divide the rows of the clips that are left.
int64_t dealt_clips(int64_t frames, const models::Decoder::Clip& clip, int64_t round);

// Decodes z [T, C, h, w], which every rank of `group` has whole, to `frames` frames. Rank 0 calls `take` with
// converted frames of one clip after the other, in order. All ranks must call this.
void decode_video(const models::Decoder& decoder, const at::Tensor& z, int64_t frames,
                  const comm::Group& group, const VideoDecodeOptions& options,
                  const std::function<void(const at::Tensor& frames)>& take);

}  // namespace tessera::engine
