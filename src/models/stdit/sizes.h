// The sizes that Open-Sora 1.2 was trained on, by name: a resolution ("240p") and an aspect ratio ("9:16",
// height to width).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::models {

struct VideoSize {
  int64_t height, width;  // in pixels
  bool operator==(const VideoSize&) const = default;
};

std::vector<std::string> video_resolutions();
std::vector<std::string> video_aspect_ratios();
// Both must be in these lists.
VideoSize video_size(const std::string& resolution, const std::string& aspect_ratio);
// Whether the table has this size.
bool is_video_size(const VideoSize& size);

}  // namespace tessera::models
