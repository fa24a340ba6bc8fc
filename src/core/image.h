// Images, and PNG files with text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
std::string encode_png(const Image& image, const ImageText& text = {});

struct PngFile {
  Image image;
  ImageText text;  // UTF-8
};

// Reads any PNG as 8-bit RGB without alpha. Throws Error(kInput) when the file is missing or damaged; `where`
// is its name in messages.
PngFile decode_png(std::string_view bytes, const std::string& where);
PngFile read_png(const std::filesystem::path& path);

// Reads the text in a PNG file that ends where its pixels begin, or later.
ImageText decode_png_text(std::string_view bytes, const std::string& where);

}  // namespace tessera
