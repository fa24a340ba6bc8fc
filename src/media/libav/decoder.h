// Images and videos that libav's decoders read.
#pragma once

#include <memory>
#include <string>

#include "media/codecs.h"

namespace tessera::media {

// Every failure is an Error(kInput), also of Decoder::next().
std::unique_ptr<Decoder> make_decoder(const Source& source, const std::string& where,
                                      const ReadLimits& limits);

}  // namespace tessera::media
