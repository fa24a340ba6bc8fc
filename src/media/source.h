// Bytes that can be read at any place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace tessera::media {

struct Source {
  int64_t size = 0;
  // Reads up to `to.size()` bytes from `offset`, which lies in the file. Returns their number, or -1 if
  // reading fails.
  std::function<int64_t(int64_t offset, std::span<std::byte> to)> read;
};

}  // namespace tessera::media
