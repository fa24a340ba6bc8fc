// Writes images in the format that the suffix of a name selects.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/image.h"

namespace tessera::media {

//  .png          with text
//  .jpg, .jpeg   4:4:4, near libjpeg's quality 95
//  .webp         lossy, quality 95
// JPEG and WebP keep the text as EXIF (media/exif.h).
const std::vector<std::string>& image_suffixes();
// Whether the name ends with one of them, in lower or upper case.
bool is_image_path(const std::filesystem::path& path);

// Returns the bytes of the file, whose name determines the format, after require_encodable().
std::string encode_image(const std::filesystem::path& path, const Image& image, const ImageText& text);

// Throws Error(kUsage), before there is an image, if it could not be encoded because it is too large for the
// format, has too long a text, or lacks an encoder; Error(kInput) if the codecs' module cannot be loaded.
void require_encodable(const std::filesystem::path& path, int64_t height, int64_t width,
                       const ImageText& text);

}  // namespace tessera::media
