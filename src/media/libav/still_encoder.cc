#include "media/libav/still_encoder.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "media/libav/libav.h"

namespace tessera::media {
namespace {

struct StillEncoding {
  const char* encoder;
  const char* options;
  AVPixelFormat pixels;
};

// The scale of quantisation 2 (times FF_QP2LAMBDA, 118): on the sheets in docs/ it is 0.4 dB below libjpeg's
// quality 95 without subsampling, in two thirds of the bytes. Fewer chroma samples would cost 5 to 14 dB.
constexpr StillEncoding kJpeg = {.encoder = "mjpeg",
                                 .options = "flags=qscale+bitexact:global_quality=236:huffman=optimal",
                                 .pixels = AV_PIX_FMT_YUVJ444P};
// The encoder gets RGB, so that libwebp subsamples the chroma itself: swscale's subsampling loses 4 to 11 dB.
constexpr StillEncoding kWebp = {.encoder = "libwebp", .options = "quality=95", .pixels = AV_PIX_FMT_BGRA};

uint8_t rounded(double value) {
  return static_cast<uint8_t>(std::clamp(std::lround(value), 0L, 255L));
}

// JFIF's colours are those of BT.601 with full range.
void set_planes(const Image& image, const AVFrame& to) {
  const uint8_t* pixel = image.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x, pixel += 3) {
      const double red = pixel[0], green = pixel[1], blue = pixel[2];
      const double luma = 0.299 * red + 0.587 * green + 0.114 * blue;
      to.data[0][y * to.linesize[0] + x] = rounded(luma);
      to.data[1][y * to.linesize[1] + x] = rounded(128 + (blue - luma) / 1.772);
      to.data[2][y * to.linesize[2] + x] = rounded(128 + (red - luma) / 1.402);
    }
  }
}

void set_packed(const Image& image, const AVFrame& to) {
  const uint8_t* pixel = image.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* out = to.data[0] + y * to.linesize[0];
    for (int64_t x = 0; x < image.width; ++x, pixel += 3, out += 4) {
      std::reverse_copy(pixel, pixel + 3, out);
      out[3] = 255;
    }
  }
}

void check(int code, const std::string& where) {
  if (code == AVERROR(ENOMEM)) throw std::bad_alloc();
  if (code < 0) usage_error(where, "cannot encode the image: {}", libav_reason(code));
}

Codec open_codec(const StillEncoding& encoding, const std::string& where, const Image& image) {
  const AVCodec* const encoder = avcodec_find_encoder_by_name(encoding.encoder);
  if (!encoder) usage_error(where, "the FFmpeg of this machine lacks the encoder {}", encoding.encoder);
  auto codec = owned<Codec>(avcodec_alloc_context3(encoder));
  codec->height = static_cast<int>(image.height);
  codec->width = static_cast<int>(image.width);
  codec->pix_fmt = encoding.pixels;
  codec->color_range = AVCOL_RANGE_JPEG;
  codec->time_base = {.num = 1, .den = 1};
  codec->thread_count = 1;
  AVDictionary* options = parse_options(encoding.options).release();
  const int code = avcodec_open2(codec.get(), encoder, &options);
  const Options left(options);
  check(code, where);
  return codec;
}

}  // namespace

std::string encode_image(ImageFormat format, const std::string& where, const Image& image) {
  silence_libav();
  begin_libav();
  const StillEncoding& encoding = format == ImageFormat::kJpeg ? kJpeg : kWebp;
  const Codec codec = open_codec(encoding, where, image);
  const auto frame = owned<Frame>(av_frame_alloc());
  frame->height = codec->height;
  frame->width = codec->width;
  frame->format = codec->pix_fmt;
  frame->quality = codec->global_quality;
  if (av_frame_get_buffer(frame.get(), 0) < 0) throw std::bad_alloc();
  encoding.pixels == AV_PIX_FMT_BGRA ? set_packed(image, *frame) : set_planes(image, *frame);
  check(avcodec_send_frame(codec.get(), frame.get()), where);
  check(avcodec_send_frame(codec.get(), nullptr), where);
  const auto packet = owned<Packet>(av_packet_alloc());
  check(avcodec_receive_packet(codec.get(), packet.get()), where);
  return {reinterpret_cast<const char*>(packet->data), static_cast<size_t>(packet->size)};
}

}  // namespace tessera::media
