// Reads PNG files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/image.h"

namespace tessera {

struct PngFile {
  Image image;
  ImageText text;  // UTF-8
};

// Reads any PNG as 8-bit RGB without alpha. Throws Error(kInput) if the file is missing or damaged; `where`
// is its name in messages.
PngFile decode_png(std::string_view bytes, const std::string& where);
PngFile read_png(const std::filesystem::path& path);

// Reads the text in a PNG file that may be cut off where its pixels begin, or later.
ImageText decode_png_text(std::string_view bytes, const std::string& where);

}  // namespace tessera
