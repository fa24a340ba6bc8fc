// Whether a file has its end.
#pragma once

#include <cstdint>
#include <optional>

#include "media/source.h"

namespace tessera::media {

// Returns how many bytes the file has to have, at least, by the lengths of its parts (MP4 and MOV, WebM and
// MKV, GIF, WebP), or nothing if it does not say. libav reads what there is of a video that was cut off and
// does not complain.
std::optional<int64_t> stated_size(const Source& source);

}  // namespace tessera::media
