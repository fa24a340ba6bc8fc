#include "media/libav/colours.h"

extern "C" {
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <array>
#include <vector>

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

// Whether the samples have 16 bits and are interleaved, either grey or three colours, like those of a PNG.
bool has_deep_samples(const AVPixFmtDescriptor& format) {
  constexpr uint64_t kOthers = AV_PIX_FMT_FLAG_PLANAR | AV_PIX_FMT_FLAG_FLOAT | AV_PIX_FMT_FLAG_BITSTREAM;
  const bool is_grey = format.nb_components <= 2, is_rgb = (format.flags & AV_PIX_FMT_FLAG_RGB) != 0;
  constexpr int kDeep = 16;
  return (format.flags & kOthers) == 0 && (is_grey || is_rgb) && format.comp[0].depth == kDeep;
}

// Takes the upper eight bits of each sample, as Pillow does for colours of a PNG; swscale would round.
Image image_of_deep_samples(const AVFrame& frame, const AVPixFmtDescriptor& format) {
  const bool is_grey = format.nb_components <= 2, is_big_endian = (format.flags & AV_PIX_FMT_FLAG_BE) != 0;
  Image image{.height = frame.height, .width = frame.width, .pixels = {}};
  image.pixels.reserve(static_cast<size_t>(frame.height) * static_cast<size_t>(frame.width) * 3);
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* const row = frame.data[0] + int64_t{y} * frame.linesize[0];
    for (int x = 0; x < frame.width; ++x) {
      for (int colour = 0; colour < 3; ++colour) {
        const AVComponentDescriptor& sample = format.comp[is_grey ? 0 : colour];
        image.pixels.push_back(row[x * sample.step + sample.offset + (is_big_endian ? 0 : 1)]);
      }
    }
  }
  return image;
}

// Sets the matrix and the range of frames that are decoded to RGB, if the file gives them.
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

// A plane of half the rows and columns at the size of the frame, as libwebp enlarges it: three quarters of a
// pixel's own sample and one of the next in each direction, rounded twice. At the edges of the plane, the
// pixel's own sample takes the place of the next.
std::vector<uint8_t> enlarged(const AVFrame& frame, int plane) {
  const auto next = [](int at, int all) {
    return std::clamp(at / 2 + (at % 2 == 0 ? -1 : 1), 0, (all - 1) / 2);
  };
  const auto row = [&](int y) { return frame.data[plane] + int64_t{y} * frame.linesize[plane]; };
  std::vector<uint8_t> samples;
  samples.reserve(static_cast<size_t>(frame.height) * static_cast<size_t>(frame.width));
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* const near = row(y / 2);
    const uint8_t* const far = row(next(y, frame.height));
    for (int x = 0; x < frame.width; ++x) {
      const int column = x / 2, beside = next(x, frame.width), own = near[column];
      const int mean = (own + 3 * (near[beside] + far[column]) + far[beside] + 8) >> 3;
      samples.push_back(static_cast<uint8_t>((mean + own) >> 1));
    }
  }
  return samples;
}

// Like libwebp, with the matrix of BT.601 and six fractional bits.
Image image_of_webp(const AVFrame& frame) {
  const auto to_rgb = [](int luma, int cb, int cr) -> std::array<int, 3> {
    const int y = (19077 * luma) >> 8;
    return {(y + ((26149 * cr) >> 8) - 14234) >> 6,
            (y - ((6419 * cb) >> 8) - ((13320 * cr) >> 8) + 8708) >> 6,
            (y + ((33050 * cb) >> 8) - 17685) >> 6};
  };
  const std::vector<uint8_t> cb = enlarged(frame, 1), cr = enlarged(frame, 2);
  Image image{.height = frame.height, .width = frame.width, .pixels = {}};
  image.pixels.reserve(3 * cb.size());
  size_t at = 0;
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* const luma = frame.data[0] + int64_t{y} * frame.linesize[0];
    for (int x = 0; x < frame.width; ++x, ++at) {
      for (const int colour : to_rgb(luma[x], cb[at], cr[at]))
        image.pixels.push_back(static_cast<uint8_t>(std::clamp(colour, 0, 255)));
    }
  }
  return image;
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
  const bool has_halved_chroma = format == AV_PIX_FMT_YUV420P || format == AV_PIX_FMT_YUVA420P;
  if (still_ == AV_CODEC_ID_WEBP && has_halved_chroma) return image_of_webp(frame);
  const AVPixFmtDescriptor& described = *av_pix_fmt_desc_get(format);
  if (still_ != AV_CODEC_ID_NONE && has_deep_samples(described))
    return image_of_deep_samples(frame, described);
  if (!rgb_ || format != format_) {
    format_ = format;
    scaler_ =
        configured({.height = frame.height,
                    .width = frame.width,
                    .from = format,
                    .to = AV_PIX_FMT_RGB24,
                    .flags = still_ != AV_CODEC_ID_NONE ? SWS_BILINEAR | SWS_FULL_CHR_H_INT | SWS_ACCURATE_RND
                                                        : SWS_BILINEAR});
    const bool is_ready = sws_init_context(scaler_.get(), nullptr, nullptr) >= 0;
    TESSERA_CHECK(is_ready, "swscale cannot convert format {} to RGB", frame.format);
    set_colours(*scaler_, frame);
    rgb_ = make_frame(frame.height, frame.width, AV_PIX_FMT_RGB24);  // its rows are longer than the image's
  }
  const int done =
      sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rgb_->data, rgb_->linesize);
  TESSERA_CHECK(done == frame.height, "swscale converted {} of {} rows", done, frame.height);

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
