// Mask strategies of Open-Sora: which latent frames of references stand where in a video, and how much of
// them may change.
//
// Shapes: C latent channels, T latent frames of the video, R of a reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

// Frames of a reference that a clip of the video begins from. All numbers count latent frames.
struct GivenRange {
  int64_t loop = 0;                               // the clip, of those that make a long video
  int64_t reference = 0;                          // its place in the list
  int64_t reference_start = 0, target_start = 0;  // negative: from the end
  int64_t length = 1;
  double edit = 0;  // 0 keeps the frames; up to 1, the share of the noise from which they are denoised again
};

// Reads "0,0,0,0,1,0.3;..." : groups of up to six numbers, those of GivenRange in order, of which any from
// the end may be left out. An empty text has no group. Throws Error(kUsage) that names `field`.
std::vector<GivenRange> parse_mask_strategy(const std::string& text, const std::string& field);

// The reference of a range among `references`, or -1 if there is none.
int64_t reference_of(const GivenRange& range, int64_t references);

// Where latent frames of a reference of `from_frames` go in a video of `frames`. With `align`, starts move to
// the nearest multiple, so that clips of the autoencoder stay whole. The length is cut at both ends. Throws
// Error(kUsage) for a start outside of its frames.
struct Placement {
  int64_t from = 0, to = 0, length = 0;
};
Placement placement_of(const GivenRange& range, int64_t from_frames, int64_t frames,
                       std::optional<int64_t> align);

// Copies frames of `references` ([C, R, h, w] each) into z [C, T, h, w] as `ranges` of this loop say, sets
// `placed` [T] to 1 for them, and returns the mask [T] fp32 of samplers::VideoSampler::masks(). Throws
// Error(kUsage) for a reference that does not exist, and as placement_of() does.
at::Tensor place_references(const std::vector<GivenRange>& ranges, int64_t loop,
                            const std::vector<at::Tensor>& references, std::optional<int64_t> align,
                            at::Tensor& z, at::Tensor& placed);

}  // namespace tessera::engine
