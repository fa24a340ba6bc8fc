// JPEG pictures, read by libjpeg in the same way as Pillow: every pixel is that of
// Image.open(file).convert("RGB").
#pragma once

#include <memory>
#include <string>

#include "media/codecs.h"

namespace tessera::media {

// Throws Error(kInput) for a file that is damaged, cut off, too large, or coded in a way that libjpeg does
// not read.
std::unique_ptr<Decoder> make_jpeg_decoder(const Source& source, const std::string& where,
                                           const ReadLimits& limits);

}  // namespace tessera::media
