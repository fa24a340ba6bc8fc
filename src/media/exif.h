// EXIF: the text of an image in JPEG and WebP files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/image.h"

namespace tessera::media {

// Returns a block (TIFF, big-endian) with three texts of `text`, UTF-8: `tessera` as ImageDescription,
// `Software`, and `parameters` as UserComment in UTF-16, where most image tools look for them.
std::string encode_exif(const ImageText& text);

// Returns the ImageDescription of a block; nothing if there is none.
std::optional<std::string> exif_description(std::string_view exif);

// Returns the orientation of its image, 1 to 8; 1, not rotated, if there is none.
int exif_orientation(std::string_view exif);

// Put the block into a file without one, and find it in a file (including PNG); an empty view if there is
// none. A JPEG can hold a block of kMostJpegExif bytes.
inline constexpr size_t kMostJpegExif = 0xFFFF - 8;
std::string jpeg_with_exif(std::string_view jpeg, std::string_view exif);
std::string webp_with_exif(std::string_view webp, std::string_view exif, int64_t height, int64_t width);
std::string_view find_exif(std::string_view file);

}  // namespace tessera::media
