#include "media/libav/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "media/libav/colours.h"
#include "media/libav/libav.h"
#include "media/palette.h"

namespace tessera::media {
namespace {

struct Encoding {
  const char* muxer;
  const char* muxer_options;
  const char* encoder;
  const char* encoder_options;
  AVPixelFormat pixels;
  // In these formats, libav seeks back in the file at the end, so its bytes are not known before. In others,
  // bytes come with the frames.
  bool is_seekable;
};

// Macroblock trees are off: with AVX-512, x264 164 reads uninitialised memory for them if a frame is 4 or 6
// macroblocks wide, so the same frames would give different files.
constexpr Encoding kMp4 = {.muxer = "mp4",
                           .muxer_options = "movflags=faststart",
                           .encoder = "libx264",
                           .encoder_options = "preset=medium:crf=17:profile=high:mbtree=0",
                           .pixels = AV_PIX_FMT_YUV420P,
                           .is_seekable = true};
constexpr Encoding kWebm = {.muxer = "webm",
                            .muxer_options = "",
                            .encoder = "libvpx-vp9",
                            .encoder_options = "crf=18:deadline=good:cpu-used=2",
                            .pixels = AV_PIX_FMT_YUV420P,
                            .is_seekable = true};
constexpr Encoding kGif = {.muxer = "gif",
                           .muxer_options = "loop=0",
                           .encoder = "gif",
                           .encoder_options = "",
                           .pixels = AV_PIX_FMT_PAL8,
                           .is_seekable = false};

// Writes the pixels as indices into a palette, which is stored in the frame too.
void set_palette_frame(std::span<const uint8_t> rgb, AVFrame& to) {
  const Palette palette = make_palette(rgb);
  auto* const entries = reinterpret_cast<uint32_t*>(to.data[1]);
  constexpr uint32_t kOpaque = 0xFF000000U;
  std::fill_n(entries, AVPALETTE_COUNT, kOpaque);
  for (size_t i = 0; i < palette.colours.size(); ++i) {
    const auto& [red, green, blue] = palette.colours[i];
    entries[i] = kOpaque | static_cast<uint32_t>(red) << 16 | static_cast<uint32_t>(green) << 8 | blue;
  }
  const uint8_t* pixel = rgb.data();
  for (int y = 0; y < to.height; ++y) {
    uint8_t* const row = to.data[0] + static_cast<int64_t>(y) * to.linesize[0];
    for (int x = 0; x < to.width; ++x, pixel += 3) row[x] = palette(pixel);
  }
}

// Returns the rate as a fraction: 23.976, 29.97 and 59.94 mean the television rates N * 1000 / 1001.
AVRational to_frame_rate(double fps) {
  TESSERA_CHECK(fps >= 0.01 && fps <= 1000, "{} frames a second", fps);
  constexpr double kRounded = 1e-3;  // 23.976 for 23.97602...
  const double whole = std::ceil(fps);
  if (fps != whole && std::abs(whole * 1000 / 1001 - fps) < kRounded)
    return {.num = static_cast<int>(whole) * 1000, .den = 1001};
  return av_d2q(fps, 1'000'000);
}

std::string comment_of(const ImageText& text) {
  std::string comment;
  for (const auto& [keyword, value] : text)
    comment += fmt::format("{}{}: {}", comment.empty() ? "" : "\n", keyword, value);
  return comment;
}

class LibavEncoder : public Encoder {
 public:
  LibavEncoder(const Encoding& encoding, std::string where, const VideoFormat& format)
      : encoding_(encoding), where_(std::move(where)), memory_(encoding.is_seekable) {
    silence_libav();
    begin_libav();
    open_codec(format);
    open_muxer(format);
    if (encoding.pixels != AV_PIX_FMT_PAL8) from_rgb_.emplace(codec_->height, codec_->width, encoding.pixels);
    packet_ = owned<Packet>(av_packet_alloc());
  }
  // The muxer frees what it holds of the last frames only when it is ended.
  ~LibavEncoder() override {
    if (!is_complete_) av_write_trailer(muxer_.get());
  }
  LibavEncoder(const LibavEncoder&) = delete;
  LibavEncoder& operator=(const LibavEncoder&) = delete;

  std::string encode(std::span<const uint8_t> frame) override {
    begin_libav();
    const Frame picture = make_picture();
    if (from_rgb_) {
      (*from_rgb_)(frame, *picture);
    } else {
      set_palette_frame(frame, *picture);
    }
    picture->pts = frames_++;
    send(picture.get());
    return encoding_.is_seekable ? std::string() : memory_.take();
  }

  std::string finish() override {
    begin_libav();
    send(nullptr);
    is_complete_ = true;
    check(av_write_trailer(muxer_.get()));
    return memory_.take();
  }

 private:
  void open_codec(const VideoFormat& format);
  void open_muxer(const VideoFormat& format);
  Frame make_picture() const;
  void send(const AVFrame* frame);
  void check(int code) const {
    if (code == AVERROR(ENOMEM)) throw std::bad_alloc();
    if (code < 0) usage_error(where_, "cannot encode the video: {}", libav_reason(code));
  }

  Encoding encoding_;
  std::string where_;
  MemoryFile memory_;
  Codec codec_;
  Muxer muxer_;
  Packet packet_;
  std::optional<FromRgb> from_rgb_;
  int64_t frames_ = 0;
  bool is_complete_ = false;
};

void LibavEncoder::open_codec(const VideoFormat& format) {
  const bool is_halved = encoding_.pixels == AV_PIX_FMT_YUV420P;
  if (is_halved && (format.height % 2 != 0 || format.width % 2 != 0)) {
    usage_error(where_, "{} x {} pixels: the sizes must be even here; a .gif or .png takes any",
                format.height, format.width);
  }
  const AVCodec* const codec = avcodec_find_encoder_by_name(encoding_.encoder);
  if (!codec) usage_error(where_, "the FFmpeg of this machine lacks the encoder {}", encoding_.encoder);
  codec_ = owned<Codec>(avcodec_alloc_context3(codec));
  codec_->height = static_cast<int>(format.height);
  codec_->width = static_cast<int>(format.width);
  codec_->pix_fmt = encoding_.pixels;
  codec_->bit_rate = 0;  // the quality is constant
  codec_->thread_count = 1;
  codec_->framerate = to_frame_rate(format.fps);
  codec_->time_base = av_inv_q(codec_->framerate);
  codec_->sample_aspect_ratio = {.num = 1, .den = 1};
  if (is_halved) {
    codec_->color_range = AVCOL_RANGE_MPEG;
    codec_->colorspace = AVCOL_SPC_BT709;
    codec_->color_primaries = AVCOL_PRI_BT709;
    codec_->color_trc = AVCOL_TRC_BT709;
    codec_->chroma_sample_location = AVCHROMA_LOC_LEFT;
  }
  const AVOutputFormat* const output = av_guess_format(encoding_.muxer, nullptr, nullptr);
  if (!output) usage_error(where_, "the FFmpeg of this machine cannot write {}", encoding_.muxer);
  if ((output->flags & AVFMT_GLOBALHEADER) != 0) codec_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  AVDictionary* options = parse_options(encoding_.encoder_options).release();
  const int code = avcodec_open2(codec_.get(), codec, &options);
  const Options left(options);
  check(code);
}

void LibavEncoder::open_muxer(const VideoFormat& format) {
  AVFormatContext* made = nullptr;
  check(avformat_alloc_output_context2(&made, nullptr, encoding_.muxer, nullptr));
  muxer_ = owned<Muxer>(made);
  memory_.attach(*muxer_);
  muxer_->flags |= AVFMT_FLAG_BITEXACT;  // without random numbers, so that the same frames give the same file
  AVStream* const stream = avformat_new_stream(muxer_.get(), nullptr);
  if (!stream) throw std::bad_alloc();
  check(avcodec_parameters_from_context(stream->codecpar, codec_.get()));
  stream->time_base = codec_->time_base;
  stream->avg_frame_rate = codec_->framerate;
  if (!format.text.empty()) av_dict_set(&muxer_->metadata, "comment", comment_of(format.text).c_str(), 0);
  AVDictionary* options = parse_options(encoding_.muxer_options).release();
  const int code = avformat_write_header(muxer_.get(), &options);
  const Options left(options);
  check(code);
}

Frame LibavEncoder::make_picture() const {
  auto picture = owned<Frame>(av_frame_alloc());
  picture->height = codec_->height;
  picture->width = codec_->width;
  picture->format = codec_->pix_fmt;
  picture->color_range = codec_->color_range;
  picture->colorspace = codec_->colorspace;
  picture->color_primaries = codec_->color_primaries;
  picture->color_trc = codec_->color_trc;
  picture->chroma_location = codec_->chroma_sample_location;
  if (av_frame_get_buffer(picture.get(), 0) < 0) throw std::bad_alloc();
  return picture;
}

// Passes a frame to the encoder, or signals the end, and passes its output to the muxer.
void LibavEncoder::send(const AVFrame* frame) {
  check(avcodec_send_frame(codec_.get(), frame));
  while (true) {
    const int code = avcodec_receive_packet(codec_.get(), packet_.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) break;
    check(code);
    if (packet_->duration == 0) packet_->duration = 1;  // some encoders leave it out
    packet_->stream_index = 0;
    av_packet_rescale_ts(packet_.get(), codec_->time_base, muxer_->streams[0]->time_base);
    check(av_interleaved_write_frame(muxer_.get(), packet_.get()));
  }
}

const Encoding& encoding_of(Container container) {
  switch (container) {
    case Container::kMp4:
      return kMp4;
    case Container::kWebm:
      return kWebm;
    case Container::kGif:
      return kGif;
  }
  TESSERA_CHECK(false, "container {}", static_cast<int>(container));
}

}  // namespace

std::unique_ptr<Encoder> make_encoder(Container container, const std::string& where,
                                      const VideoFormat& format) {
  return std::make_unique<LibavEncoder>(encoding_of(container), where, format);
}

}  // namespace tessera::media
