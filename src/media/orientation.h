// How a picture is turned before it is shown.
#pragma once

#include "core/image.h"

namespace tessera::media {

// Rows become columns first, if at all.
struct Orientation {
  bool is_transposed = false;
  bool is_mirrored = false;  // left and right
  bool is_upside_down = false;

  bool operator==(const Orientation&) const = default;
};

// Of the number in EXIF data, 1 to 8; others turn nothing.
Orientation orientation_of_exif(int number);

Image oriented(Image image, const Orientation& orientation);

}  // namespace tessera::media
