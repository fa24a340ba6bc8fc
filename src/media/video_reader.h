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
// contents, whatever their names. A video's first video track is read. Frames are rotated as in players: by
// the matrix of the track, or the EXIF data of an image. media/libav/colours.h and
// media/libjpeg/jpeg_decoder.h describe how colours are converted. Only the file itself is opened: references
// to other places are not followed.
//
// A file that is missing, damaged, cut off, too large or of another kind is an Error(kInput) that names it,
// from the constructor or later.
class VideoReader {
 public:
  explicit VideoReader(const std::filesystem::path& path, const ReadLimits& limits = {});
  // For bytes, which must outlive this; `where` is their name in messages.
  VideoReader(std::span<const std::byte> bytes, const std::string& where, const ReadLimits& limits = {});
  ~VideoReader();
  VideoReader(VideoReader&&) noexcept;
  VideoReader& operator=(VideoReader&&) noexcept;

  int64_t height() const;
  int64_t width() const;
  double fps() const;           // on average, as estimated by libav; 0 for a still image
  double pixel_aspect() const;  // width to height of a pixel when shown; 1 for a still image
  // Whether it is a 16-bit grey PNG, which Pillow clips at 255. Here the upper eight bits count.
  bool is_deep_grey() const { return is_deep_grey_; }

  // The next frame, all of one size, or nothing at the end. Only one frame and what the codec needs are held
  // at a time.
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
  double fps = 0;             // 0 for a still image
};

// Reads the first frames, at most `max_frames`.
Video read_video(const std::filesystem::path& path, int64_t max_frames);

}  // namespace tessera::media
