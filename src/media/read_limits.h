// Limits for the size of frames that are read.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.h"

namespace tessera::media {

struct ReadLimits {
  int64_t side = 16384;
  int64_t pixels = int64_t{1} << 26;  // of a frame
};

// Throws Error(kInput) if frames of this size exceed them; `where` is the name of their file.
inline void require_within(const ReadLimits& limits, int64_t height, int64_t width,
                           const std::string& where) {
  if (height > limits.side || width > limits.side || height * width > limits.pixels) {
    input_error(where, "{} x {} pixels; at most {} a side and {} in all are read", height, width, limits.side,
                limits.pixels);
  }
}

}  // namespace tessera::media
