// Images that libav's encoders make.
#pragma once

#include <string>

#include "media/codecs.h"

namespace tessera::media {

// Every failure is an Error(kUsage).
std::string encode_image(ImageFormat format, const std::string& where, const Image& image);

}  // namespace tessera::media
