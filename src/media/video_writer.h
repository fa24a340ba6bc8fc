// Writes videos, frame by frame.
//
// Shapes: H x W frame size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/image.h"

namespace tessera::media {

// What files are written, by the suffix of their names:
//  .mp4   H.264 (x264, CRF 17, High profile or below, 4:2:0, BT.709 limited range); the index comes first, so
//         that a browser plays it while it loads
//  .webm  VP9 (libvpx, CRF 18), the same colours
//  .gif   a palette for each frame, without dithering; loops forever
//  .png   frames NAME-0000.png, NAME-0001.png, ...; NAME.png if there is only one frame
const std::vector<std::string>& video_suffixes();
// Whether the name ends with one of them, in lower or upper case.
bool is_video_path(const std::filesystem::path& path);

// Browsers slow the frames of a faster GIF down to ten a second.
inline constexpr double kMostGifFps = 50;

struct VideoFormat {
  int64_t height = 0;
  int64_t width = 0;
  double fps = 24;  // 23.976, 29.97 and 59.94 are the television rates N * 1000 / 1001
  // An MP4 or WebM keeps it as its comment, with a line `KEYWORD: TEXT` for each pair; each PNG keeps it as
  // text; a GIF does not keep it.
  ImageText text = {};
};

// Throws Error(kUsage) naming `path` for a size or a rate that the encoder of its format does not accept.
// Writes nothing.
void require_encodable(const std::filesystem::path& path, const VideoFormat& format);

// Takes frames and encodes them; at most a few are held at once, and for an MP4 or WebM the encoded bytes.
// The file appears at commit(). If that is not called, nothing appears and nothing is left behind. Every
// failure (those of an AtomicFile; an invalid suffix or size) is an Error(kUsage) that names the path.
class VideoWriter {
 public:
  // MP4 and WebM need even sizes, because pairs of rows and of columns share their chroma.
  VideoWriter(const std::filesystem::path& path, const VideoFormat& format);
  ~VideoWriter();
  VideoWriter(VideoWriter&&) noexcept;
  VideoWriter& operator=(VideoWriter&&) noexcept;

  void write(std::span<const uint8_t> frame);  // [H, W, 3] RGB
  void commit();                               // after at least one frame

  // Where frames go.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void write(std::span<const uint8_t> frame) = 0;
    virtual void commit() = 0;
  };

 private:
  size_t frame_bytes_;
  int64_t frames_ = 0;
  std::unique_ptr<Sink> sink_;
};

}  // namespace tessera::media
