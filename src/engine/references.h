// The frames of references that videos of a batch begin from, in latents.
//
// Shapes: N videos, F frames, C latent channels, T latent frames, h x w latent size, H x W frame size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "models/family.h"

namespace tessera::engine {

// What the videos of a part begin from.
struct GivenLatents {
  at::Tensor z;       // [N, C, T, h, w] fp32; only `placed` frames count
  at::Tensor placed;  // [N, T] fp32, 1 for frames of references
  at::Tensor mask;    // [N, T] fp32, as in samplers::VideoSampler::masks()
};

// The rank that has the files holds one of these.
class References {
 public:
  // Reads and encodes what the requests name. `requests` and `encoder` must outlive this. Throws
  // Error(kInput) for a file that cannot be read.
  References(std::span<const Settings> requests, const models::VideoEncoder& encoder,
             const models::LatentScale& scale);

  // Takes the frames of a video as they are decoded, [F, 3, H, W] in [-1, 1], of which the next part may
  // need the last.
  void add_decoded(int64_t video, const at::Tensor& frames);
  // What a part begins from; after the first part, also from the end of the one before.
  GivenLatents given(int64_t loop);

 private:
  struct Video {
    std::vector<at::Tensor> references;  // [C, R, h, w] each
    std::vector<GivenRange> ranges;
    std::vector<at::Tensor> last_frames;  // of the part before, from first_needed() on
    int64_t decoded = 0;                  // frames of the part
  };

  const Settings& settings() const { return requests_.front(); }
  at::Tensor encode_file(const std::string& path) const;
  at::Tensor encode_clip(std::vector<at::Tensor>& frames) const;
  // The first frame of a part that the next part needs, which begins a clip of the autoencoder.
  int64_t first_needed() const;
  void add_previous_part(Video& video, int64_t loop) const;

  std::span<const Settings> requests_;
  const models::VideoEncoder& encoder_;
  models::LatentScale scale_;
  std::vector<Video> videos_;
};

}  // namespace tessera::engine
