// Conversions between 8-bit RGB and the pixel formats of codecs.
#pragma once

#include <cstdint>
#include <span>

#include "core/image.h"
#include "media/libav/libav.h"

namespace tessera::media {

// Converts RGB to frames of `format` (a YUV format): BT.709, limited range, chroma at the left.
class FromRgb {
 public:
  FromRgb(int height, int width, AVPixelFormat format);
  void operator()(std::span<const uint8_t> rgb, AVFrame& to) const;

 private:
  Scaler scaler_;
  Frame rgb_;  // its rows are longer than the image's, because swscale reads beyond them
};

// Converts decoded frames to RGB. Alpha is dropped.
//
// A video is converted as the reference reads it (PyAV's to_rgb(): swscale with SWS_BILINEAR, which repeats
// the chroma of a block), with one difference: PyAV uses BT.601 even if the file names another matrix; here,
// the named one is used, so that colours are as in players. Both use BT.601 if the file names none. A WebP is
// converted like Pillow's decoder, libwebp, does, which interpolates chroma. If samples in a still image have
// 16 bits, the upper eight count.
class ToRgb {
 public:
  // `still` is the codec of a still image, or none for a video.
  explicit ToRgb(AVCodecID still) : still_(still) {}
  Image operator()(const AVFrame& frame);  // with the size of the first one

 private:
  AVCodecID still_;
  AVPixelFormat format_ = AV_PIX_FMT_NONE;
  Scaler scaler_;
  Frame rgb_;
};

}  // namespace tessera::media
