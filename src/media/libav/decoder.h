// Images and videos that libav's decoders read.
#pragma once

#include <memory>
#include <string>

#include "media/codecs.h"

namespace tessera::media {

// Every failure of both functions, and of Decoder::next(), is an Error(kInput).
std::unique_ptr<Decoder> make_decoder(const Source& source, const std::string& where,
                                      const ReadLimits& limits);

std::string read_comment(const Source& source, const std::string& where);

}  // namespace tessera::media
