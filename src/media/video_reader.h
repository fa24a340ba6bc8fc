// Reads images and videos.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/image.h"
#include "media/orientation.h"
#include "media/read_limits.h"

namespace tessera::media {

class Decoder;
struct Source;

// Reads PNG, JPEG, WebP, BMP and GIF files, and videos in MP4, MOV, WebM, MKV and AVI files, by their
// contents, whatever their names. A video's first video track is read. Frames are turned as players turn
// them: by the matrix of the track, or the EXIF data of an image. media/libav/colours.h and
// media/libjpeg/jpeg_decoder.h say how colours are converted. A file is all that is opened: what it names
// elsewhere is not followed.
//
// A file that is missing, damaged, cut off, too large or of another kind is an Error(kInput) that names it,
// from the constructor or later.
class VideoReader {
 public:
  explicit VideoReader(const std::filesystem::path& path, const ReadLimits& limits = {});
  // Of bytes, which must outlive this; `where` is their name in messages.
  VideoReader(std::span<const std::byte> bytes, const std::string& where, const ReadLimits& limits = {});
  ~VideoReader();
  VideoReader(VideoReader&&) noexcept;
  VideoReader& operator=(VideoReader&&) noexcept;

  int64_t height() const;
  int64_t width() const;
  double fps() const;           // on average, as libav estimates it; 0 of a still image
  double pixel_aspect() const;  // width to height of a pixel as it is shown; 1 of a still image
  // Whether it is a PNG of grey with 16 bits, which Pillow clips at 255. Here the upper eight count.
  bool is_deep_grey() const { return is_deep_grey_; }

  // The next frame, all of one size, or nothing at the end. One frame is held at a time, and what the codec
  // needs.
  std::optional<Image> next();
  // The same without converting the frame. Returns whether there was one.
  bool skip();

 private:
  VideoReader(const Source& source, const std::string& where, const ReadLimits& limits);

  std::unique_ptr<Decoder> decoder_;
  Orientation orientation_;
  bool is_deep_grey_;
};

struct Video {
  std::vector<Image> frames;  // at least one
  double fps = 0;             // 0 of a still image
};

// Reads the first frames, at most `max_frames`.
Video read_video(const std::filesystem::path& path, int64_t max_frames);

}  // namespace tessera::media
