// Approximate pictures that cost next to nothing, for previews of what is being denoised.
//
// Shapes: C latent channels, h x w latent size, T frames of latents, b x b blocks of pixels for each latent,
// k the latents of a side of a neighbourhood.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/image.h"
#include "models/family.h"

namespace tessera::engine {

// A linear map from a latent and its neighbours to the colours that a decoder makes of it, averaged over 8 x
// 8 pixels. Whatever else a decoder adds is finer than a preview or not linear.
class PreviewMatrix {
 public:
  // Fits the map by least squares to the pictures that `decoder` makes of random latents with this many
  // channels on `device`. This takes as long as decoding 32 x 32 latents, and its result is the same each
  // time.
  PreviewMatrix(const models::Decoder& decoder, int64_t channels, at::Device device);

  // Turns latents [C, h, w] as the denoiser has them, fp32 on the CPU, into a picture with one pixel for each
  // 8 x 8 of the decoder's, or for more of them where the picture would be higher or wider than `most`
  // pixels. Numbers that are not finite become grey.
  Image picture(const at::Tensor& latents, int64_t most = 256) const;

 private:
  int64_t block_;          // b
  int64_t neighbourhood_;  // k
  at::Tensor weight_;      // [3 b b, C, k, k], to colours from -1 to 1
  at::Tensor bias_;        // [3 b b]
};

}  // namespace tessera::engine
