// Bytes with random access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace tessera::media {

struct Source {
  int64_t size = 0;
  // Reads up to `to.size()` bytes from `offset`, which is within the file. Returns their number, or -1 if
  // reading fails.
  std::function<int64_t(int64_t offset, std::span<std::byte> to)> read;
};

// A regular file that stays open. Throws Error(kInput) if it cannot be opened, including network addresses.
Source open_source(const std::filesystem::path& path);
// The bytes must outlive the source.
Source memory_source(std::span<const std::byte> bytes);

// Returns at most `count` bytes from `offset` on; fewer if the source ends or cannot be read.
std::string read_bytes(const Source& source, int64_t offset, int64_t count);

}  // namespace tessera::media
