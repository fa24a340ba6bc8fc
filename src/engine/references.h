// The frames of references that videos of a batch begin from, in latents.
//
// Shapes: N videos, F frames, C latent channels, T latent frames of a video, R of a reference, h x w latent
// size, H x W frame size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "models/family.h"

namespace tessera::engine {

using models::GivenRange;

// The reference of a range among `references`, or -1 if there is none.
int64_t reference_of(const GivenRange& range, int64_t references);

// The place of latent frames of a reference of `from_frames` in a video of `frames`. With `align`, starts
// move to the nearest multiple, so that clips of the autoencoder stay whole. The length is cut at both ends.
// Throws Error(kUsage) for a start outside of its frames.
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

// What the videos of a part begin with.
struct GivenLatents {
  at::Tensor z;       // [N, C, T, h, w] fp32; only `placed` frames count
  at::Tensor placed;  // [N, T] fp32, 1 for frames of references
  at::Tensor mask;    // [N, T] fp32, as in samplers::VideoSampler::masks()
};

// Held by the rank that has the files.
class References {
 public:
  // Opens every file that the requests name, and counts its frames if a mask strategy depends on their
  // number. `requests` must outlive this. Throws Error(kInput) for a file that cannot be read, and
  // Error(kUsage) for a start outside of it; warns about a range that asks for more frames than there are.
  References(std::span<const Settings> requests, const models::LatentScale& scale);

  // Takes the frames of a video as they are decoded, [F, 3, H, W] in [-1, 1]; the next part may need the last
  // ones.
  void add_decoded(int64_t video, const at::Tensor& frames);
  // Returns what a part begins with; after the first part, this includes the end of the previous one. Those
  // clips of a file that any part uses are encoded once.
  GivenLatents given(int64_t loop, const models::Encoder& encoder);

 private:
  struct File {
    std::vector<GivenRange> ranges;  // the ranges that take frames of this file
    int64_t frames = 0;              // all of them, or as many as the ranges depend on
    std::set<int64_t> clips;         // the clips that are used
    at::Tensor latents;              // [C, R, h, w], zeros in other clips
  };
  struct Video {
    std::vector<std::string> paths;
    std::vector<GivenRange> ranges;
    std::vector<at::Tensor> parts;  // [C, T, h, w] each, which follow the files in the list of references
    std::vector<at::Tensor> last_frames;  // of the previous part, from first_needed() on
    int64_t decoded = 0;                  // frames of the part
  };

  const Settings& settings() const { return requests_.front(); }
  std::optional<int64_t> align() const;
  // Latent frames of a clip of the autoencoder.
  int64_t clip_latents() const { return scale_.latent_frames(scale_.clip); }
  void add_ranges(const Video& video);
  // How many frames of its reference must be counted to place a range; more frames would not change the
  // result.
  int64_t frames_to_count(const GivenRange& range) const;
  void examine(const std::string& path, File& file) const;
  at::Tensor encode_file(const std::string& path, const File& file, const models::Encoder& encoder) const;
  at::Tensor encode_clip(std::vector<at::Tensor>& frames, const models::Encoder& encoder) const;
  // The first frame of a part that later parts need; it begins a clip of the autoencoder.
  int64_t first_needed() const;
  void add_previous_part(Video& video, int64_t loop, const models::Encoder& encoder) const;

  std::span<const Settings> requests_;
  models::LatentScale scale_;
  std::vector<Video> videos_;
  std::map<std::string, File> files_;  // by path
  bool takes_parts_ = false;           // whether any range takes frames of an earlier part
};

}  // namespace tessera::engine
