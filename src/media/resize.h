// Scales and crops frames and pictures that a model is given: for Open-Sora 1.2 they are scaled to cover a
// size, images as by PIL, frames of videos as by torch.
//
// Shapes: H x W frame size.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/image.h"

namespace tessera::media {

// Scales like PIL's Image.resize(BICUBIC), bit for bit: antialiased, with weights of 22 fractional bits, 8
// bits between columns and rows, in the order of Pillow 13. Crops at round((scaled - wanted) / 2), half to
// even.
Image cover_image(const Image& image, int64_t height, int64_t width);

// Scales like PIL's Image.resize(LANCZOS), bit for bit as above, to `scaled_height` x `scaled_width`, and
// crops at floor((scaled - wanted) / 2).
Image scale_image(const Image& image, int64_t scaled_height, int64_t scaled_width, int64_t height,
                  int64_t width);

// The image's pixels [3, H, W] fp32 in [-1, 1], in the form that a VAE takes.
at::Tensor to_tensor(const Image& image);

// Scales by torch's interpolate(mode="bilinear", align_corners=False), which is not antialiased, over x /
// 255. Crops at floor((scaled - wanted) / 2). `pixel_aspect` is the width to the height of a pixel of
// `frame`. [3, H, W] fp32 in [-1, 1].
at::Tensor cover_frame(const Image& frame, double pixel_aspect, int64_t height, int64_t width);

}  // namespace tessera::media
