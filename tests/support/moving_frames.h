// Frames of a video that codecs like: a smooth background over which a disc moves.
#pragma once

#include <cstdint>

#include "core/image.h"

namespace tessera {

Image moving_frame(int64_t height, int64_t width, int64_t number);

double psnr(const Image& a, const Image& b);  // over all channels, of images of one size

}  // namespace tessera
