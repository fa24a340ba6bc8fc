// Images, and how they become PNG files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/api.h"

namespace tessera {

// 8-bit RGB, with rows from top to bottom.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [height * width * 3]

  bool operator==(const Image&) const = default;
};

// Pairs of a keyword (1 to 79 Latin-1 characters) and a text (UTF-8), in the order of the file.
using ImageText = std::vector<std::pair<std::string, std::string>>;

// Returns the bytes of a PNG file. Text that fits Latin-1 becomes a tEXt chunk, other text an iTXt chunk.
TESSERA_API std::string encode_png(const Image& image, const ImageText& text = {});

}  // namespace tessera
