// Palettes for pictures of few colours.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::media {

struct Palette {
  std::vector<std::array<uint8_t, 3>> colours;  // at most 256, RGB
  std::vector<uint8_t> nearest;                 // for each cell of the colours in the picture

  // The index of the palette colour that replaces this colour of the picture.
  uint8_t operator()(const uint8_t* rgb) const { return nearest[cell(rgb)]; }
  // Colours are distinguished by five bits per channel.
  static size_t cell(const uint8_t* rgb) {
    return static_cast<size_t>((rgb[0] >> 3) << 10 | (rgb[1] >> 3) << 5 | rgb[2] >> 3);
  }
};

// Chooses colours for the pixels [N, 3] by cutting the box of colours with the largest squared error in two
// (Wu's criterion on Heckbert's boxes), until there are 256 or every cell has its own. A colour is the mean
// of the pixels it stands for.
Palette make_palette(std::span<const uint8_t> rgb);

}  // namespace tessera::media
