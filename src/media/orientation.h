// How a picture is rotated before it is shown.
#pragma once

#include "core/image.h"

namespace tessera::media {

// Transposing, if any, comes first.
struct Orientation {
  bool is_transposed = false;
  bool is_mirrored = false;  // left and right
  bool is_upside_down = false;

  bool operator==(const Orientation&) const = default;
};

// From the number in EXIF data, 1 to 8; for any other number, no rotation.
Orientation orientation_of_exif(int number);

Image oriented(Image image, const Orientation& orientation);

}  // namespace tessera::media
