// Videos that libav's encoders make.
#pragma once

#include <memory>
#include <string>

#include "media/codecs.h"

namespace tessera::media {

// Every failure is an Error(kUsage).
std::unique_ptr<Encoder> make_encoder(Container container, const std::string& where,
                                      const VideoFormat& format);

}  // namespace tessera::media
