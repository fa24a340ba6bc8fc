#include "media/libav/colours.h"

extern "C" {
#include <libavutil/opt.h>
}

#include <algorithm>
#include <array>

#include "core/error.h"

namespace tessera::media {
namespace {

constexpr int kCentre = 128, kLeft = 0;  // of a pixel's width, in 1/256

struct Conversion {
  int height, width;
  AVPixelFormat from, to;
  int flags;
};

// Returns a scaler that is configured but not ready, or throws bad_alloc.
Scaler configured(const Conversion& conversion) {
  auto scaler = owned<Scaler>(sws_alloc_context());
  const auto set = [&](const char* name, int64_t value) { av_opt_set_int(scaler.get(), name, value, 0); };
  set("srcw", conversion.width);
  set("srch", conversion.height);
  set("dstw", conversion.width);
  set("dsth", conversion.height);
  set("src_format", conversion.from);
  set("dst_format", conversion.to);
  set("sws_flags", conversion.flags);
  return scaler;
}

Frame make_frame(int height, int width, AVPixelFormat format) {
  auto frame = owned<Frame>(av_frame_alloc());
  frame->height = height;
  frame->width = width;
  frame->format = format;
  if (av_frame_get_buffer(frame.get(), 0) < 0) throw std::bad_alloc();
  return frame;
}

// Sets the matrix and the range of frames that are decoded to RGB, where the file names them.
void set_colours(SwsContext& scaler, const AVFrame& frame) {
  int *matrix = nullptr, *to_matrix = nullptr;
  int full = 0, to_full = 0, brightness = 0, contrast = 0, saturation = 0;
  if (sws_getColorspaceDetails(&scaler, &matrix, &full, &to_matrix, &to_full, &brightness, &contrast,
                               &saturation) < 0)
    return;  // a format without a matrix
  const int* named =
      frame.colorspace == AVCOL_SPC_UNSPECIFIED ? matrix : sws_getCoefficients(frame.colorspace);
  if (frame.color_range == AVCOL_RANGE_JPEG) full = 1;
  sws_setColorspaceDetails(&scaler, named, full, to_matrix, to_full, brightness, contrast, saturation);
}

}  // namespace

FromRgb::FromRgb(int height, int width, AVPixelFormat format)
    : rgb_(make_frame(height, width, AV_PIX_FMT_RGB24)) {
  scaler_ = configured({.height = height,
                        .width = width,
                        .from = AV_PIX_FMT_RGB24,
                        .to = format,
                        .flags = SWS_BICUBIC | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND | SWS_BITEXACT});
  av_opt_set_int(scaler_.get(), "dst_h_chr_pos", kLeft, 0);
  av_opt_set_int(scaler_.get(), "dst_v_chr_pos", kCentre, 0);
  const bool is_ready = sws_init_context(scaler_.get(), nullptr, nullptr) >= 0;
  TESSERA_CHECK(is_ready, "swscale cannot convert {} x {} pixels", height, width);
  const int* const bt709 = sws_getCoefficients(SWS_CS_ITU709);
  constexpr int kOne = 1 << 16;
  sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, kOne, kOne);
}

void FromRgb::operator()(std::span<const uint8_t> rgb, AVFrame& to) const {
  const int height = rgb_->height, row_bytes = rgb_->width * 3;
  for (int y = 0; y < height; ++y) {
    const std::span<const uint8_t> row =
        rgb.subspan(static_cast<size_t>(y) * static_cast<size_t>(row_bytes), static_cast<size_t>(row_bytes));
    std::copy(row.begin(), row.end(), rgb_->data[0] + static_cast<int64_t>(y) * rgb_->linesize[0]);
  }
  const int rows = sws_scale(scaler_.get(), rgb_->data, rgb_->linesize, 0, height, to.data, to.linesize);
  TESSERA_CHECK(rows == height, "swscale converted {} of {} rows", rows, height);
}

Image ToRgb::operator()(const AVFrame& frame) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  if (!rgb_ || format != format_) {
    format_ = format;
    scaler_ = configured(
        {.height = frame.height,
         .width = frame.width,
         .from = format,
         .to = AV_PIX_FMT_RGB24,
         .flags = is_still_ ? SWS_BILINEAR | SWS_FULL_CHR_H_INT | SWS_ACCURATE_RND : SWS_BILINEAR});
    const bool is_ready = sws_init_context(scaler_.get(), nullptr, nullptr) >= 0;
    TESSERA_CHECK(is_ready, "swscale cannot convert format {} to RGB", frame.format);
    set_colours(*scaler_, frame);
    rgb_ = make_frame(frame.height, frame.width, AV_PIX_FMT_RGB24);  // its rows are longer than the image's
  }
  const int rows =
      sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rgb_->data, rgb_->linesize);
  TESSERA_CHECK(rows == frame.height, "swscale converted {} of {} rows", rows, frame.height);

  Image image{.height = frame.height, .width = frame.width, .pixels = {}};
  const int row_bytes = frame.width * 3;
  image.pixels.reserve(static_cast<size_t>(frame.height) * static_cast<size_t>(row_bytes));
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* const row = rgb_->data[0] + static_cast<int64_t>(y) * rgb_->linesize[0];
    image.pixels.insert(image.pixels.end(), row, row + row_bytes);
  }
  return image;
}

}  // namespace tessera::media
