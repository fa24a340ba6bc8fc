// Uses the first bytes and the lengths in a file to tell whether it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "media/source.h"

namespace tessera::media {

// Returns the minimum size of the file by the lengths of its parts (MP4 and MOV, WebM and MKV, GIF, WebP,
// PNG, JPEG), or nothing if they do not determine it. libav reads what is left of a truncated video without
// an error.
std::optional<int64_t> stated_size(const Source& source);

// Whether the bytes begin a WebP with several pictures, none of which libav finds.
bool is_animated_webp(std::string_view beginning);

}  // namespace tessera::media
