#include "media/libav/decoder.h"

extern "C" {
#include <libavutil/avstring.h>
#include <libavutil/pixdesc.h>
}

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "media/libav/colours.h"
#include "media/libav/libav.h"

namespace tessera::media {
namespace {

// These formats contain all that they show, whereas a playlist could name other files or a place in a
// network.
constexpr const char* kStills = "png_pipe,webp_pipe,bmp_pipe";
constexpr const char* kVideos = "mov,mp4,matroska,webm,avi,gif,apng";
constexpr const char* kReadable = "PNG, JPEG, WebP, BMP, GIF, MP4, MOV, WebM, MKV and AVI";
constexpr const char* kDecoders =
    "h264,hevc,av1,libdav1d,vp8,vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4v2,msmpeg4,h263,theora,prores,dnxhd,"
    "ffv1,huffyuv,"
    "ffvhuff,utvideo,rawvideo,qtrle,mjpeg,png,apng,gif,webp,bmp";

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EACCES);
}

void check(int code, const std::string& where) {
  // Damaged tables contain lengths that exceed any memory.
  if (code == AVERROR(ENOMEM)) input_error(where, "needs more memory than there is, or is damaged");
  if (code < 0) input_error(where, "cannot be read as an image or video: {}", libav_reason(code));
}

struct Opened {
  Demuxer demuxer;
  bool is_still;
};

Opened open_demuxer(const SourceReader& reader, const std::string& where) {
  const AVInputFormat* kind = nullptr;
  const int found = av_probe_input_buffer2(reader.io(), &kind, "", nullptr, 0, 0);
  const bool is_still = found >= 0 && av_match_list(kind->name, kStills, ',') > 0;
  if (found < 0 || (!is_still && av_match_list(kind->name, kVideos, ',') <= 0))
    input_error(where, "not an image or video; {} files are read", kReadable);

  AVFormatContext* made = avformat_alloc_context();
  if (!made) throw std::bad_alloc();
  made->pb = reader.io();
  made->io_open = refuse_to_open;
  AVDictionary* options = nullptr;
  av_dict_set(&options, "codec_whitelist", kDecoders, 0);
  const int opened = avformat_open_input(&made, "", kind, &options);  // frees the context if it fails
  const Options left(options);
  check(opened, where);
  return {.demuxer = Demuxer(made), .is_still = is_still};
}

// The matrix of a track maps (x, y) to (a x + c y, b x + d y), in numbers with 16 fractional bits. If it does
// not rotate by a multiple of 90 degrees, the nearest multiple is used.
Orientation orientation_of(const AVStream& stream) {
  constexpr size_t kNumbers = 9;
#if LIBAVFORMAT_VERSION_MAJOR >= 61
  const AVPacketSideData* const data = av_packet_side_data_get(
      stream.codecpar->coded_side_data, stream.codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  const uint8_t* const bytes = data ? data->data : nullptr;
  const size_t size = data ? data->size : 0;
#else
  size_t size = 0;
  const uint8_t* const bytes = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
#endif
  std::array<int32_t, kNumbers> matrix = {};
  if (!bytes || size < sizeof(matrix)) return {};
  std::memcpy(matrix.data(), bytes, sizeof(matrix));
  const int64_t a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
  if (std::abs(a) + std::abs(d) >= std::abs(b) + std::abs(c))
    return {.is_transposed = false, .is_mirrored = a < 0, .is_upside_down = d < 0};
  return {.is_transposed = true, .is_mirrored = c < 0, .is_upside_down = b < 0};
}

class LibavDecoder : public Decoder {
 public:
  LibavDecoder(Source source, std::string where, const ReadLimits& limits)
      : source_(std::move(source)), where_(std::move(where)), limits_(limits), reader_(source_) {
    silence_libav();
    begin_libav();
    Opened opened = open_demuxer(reader_, where_);
    demuxer_ = std::move(opened.demuxer);
    is_still_ = opened.is_still;
    find_stream();
    open_codec();
    packet_ = owned<Packet>(av_packet_alloc());
    frame_ = owned<Frame>(av_frame_alloc());
    if (receive()) first_ = convert();
    if (!first_) input_error(where_, "holds no frame");
    height = first_->height;
    width = first_->width;
    const AVStream& stream = *demuxer_->streams[stream_];
    const AVRational rate = stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
    if (!is_still_ && rate.num > 0 && rate.den > 0) fps = av_q2d(rate);
    orientation = orientation_of(stream);
    // Browsers show animations with square pixels, as they show images, whatever the animations specify.
    const bool is_animation = codec_->codec_id == AV_CODEC_ID_GIF || codec_->codec_id == AV_CODEC_ID_APNG;
    const AVRational aspect =
        av_guess_sample_aspect_ratio(demuxer_.get(), demuxer_->streams[stream_], frame_.get());
    if (!is_still_ && !is_animation && aspect.num > 0 && aspect.den > 0) pixel_aspect = av_q2d(aspect);
  }

  std::optional<Image> next() override {
    if (first_) return std::exchange(first_, {});
    if (is_still_) return {};
    begin_libav();
    if (!receive()) return {};
    return convert();
  }

  bool skip() override {
    if (std::exchange(first_, {})) return true;
    begin_libav();
    return !is_still_ && receive();
  }

 private:
  void find_stream();
  void open_codec();
  // Decodes a frame. Returns whether there was one left.
  bool receive();
  Image convert() { return (*to_rgb_)(*frame_); }
  void feed();
  void check_size(int64_t frame_height, int64_t frame_width) const;
  void check(int code) const {
    if (code < 0 && libav_reason(code).find("max pixel count") != std::string::npos)
      input_error(where_, "has frames of more than {} pixels", limits_.pixels);
    media::check(code, where_);
  }

  Source source_;
  std::string where_;
  ReadLimits limits_;
  SourceReader reader_;
  Demuxer demuxer_;
  Codec codec_;
  Packet packet_;
  Frame frame_;
  std::optional<ToRgb> to_rgb_;
  std::optional<Image> first_;  // read to determine the size
  bool is_still_ = false;
  int stream_ = -1;
};

void LibavDecoder::find_stream() {
  const unsigned streams = demuxer_->nb_streams;
  for (unsigned i = 0; i < streams; ++i) {
    AVStream& stream = *demuxer_->streams[i];
    if (stream.codecpar->codec_type != AVMEDIA_TYPE_VIDEO) stream.discard = AVDISCARD_ALL;
  }
  std::vector<AVDictionary*> options(streams);
  for (AVDictionary*& each : options) av_dict_set_int(&each, "max_pixels", limits_.pixels, 0);
  const int code = avformat_find_stream_info(demuxer_.get(), options.data());
  for (AVDictionary*& each : options) av_dict_free(&each);
  check(code);
  stream_ = av_find_best_stream(demuxer_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (stream_ < 0) input_error(where_, "has no video track");
  for (unsigned i = 0; i < demuxer_->nb_streams; ++i) {
    if (static_cast<int>(i) != stream_) demuxer_->streams[i]->discard = AVDISCARD_ALL;
  }
}

void LibavDecoder::open_codec() {
  const AVStream& stream = *demuxer_->streams[stream_];
  check_size(stream.codecpar->height, stream.codecpar->width);
  const AVCodec* const codec = avcodec_find_decoder(stream.codecpar->codec_id);
  if (!codec || av_match_list(codec->name, kDecoders, ',') <= 0)
    input_error(where_, "its frames are encoded as {}, which is not read",
                avcodec_get_name(stream.codecpar->codec_id));
  codec_ = owned<Codec>(avcodec_alloc_context3(codec));
  check(avcodec_parameters_to_context(codec_.get(), stream.codecpar));
  codec_->pkt_timebase = stream.time_base;
  codec_->thread_count = 1;
  codec_->max_pixels = limits_.pixels;
  codec_->err_recognition = AV_EF_EXPLODE;  // by default, libav repairs what it can
  check(avcodec_open2(codec_.get(), codec, nullptr));
  to_rgb_.emplace(is_still_ ? codec->id : AV_CODEC_ID_NONE);
}

// Passes the next packet of the track to the codec, or signals the end of the packets.
void LibavDecoder::feed() {
  while (true) {
    av_packet_unref(packet_.get());
    const int code = av_read_frame(demuxer_.get(), packet_.get());
    if (code == AVERROR_EOF) return check(avcodec_send_packet(codec_.get(), nullptr));
    check(code);
    if (packet_->stream_index != stream_) continue;
    if ((packet_->flags & AV_PKT_FLAG_CORRUPT) != 0) input_error(where_, "the file is damaged or cut off");
    return check(avcodec_send_packet(codec_.get(), packet_.get()));
  }
}

bool LibavDecoder::receive() {
  while (true) {
    const int code = avcodec_receive_frame(codec_.get(), frame_.get());
    if (code == AVERROR_EOF) return false;
    if (code == AVERROR(EAGAIN)) {
      feed();
      continue;
    }
    check(code);
    check_size(frame_->height, frame_->width);
    if (height > 0 && (frame_->height != height || frame_->width != width)) {
      input_error(where_, "the size of its frames changes from {} x {} to {} x {}", height, width,
                  frame_->height, frame_->width);
    }
    const int bits = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame_->format))->comp[0].depth;
    if (codec_->codec_id == AV_CODEC_ID_BMP && 1 < bits && bits < 8)
      input_error(where_, "a BMP of 16 bits a pixel, which is not read; convert it to a PNG");
    if (sws_isSupportedInput(static_cast<AVPixelFormat>(frame_->format)) == 0)
      input_error(where_, "its pixels cannot be converted to RGB");
    return true;
  }
}

void LibavDecoder::check_size(int64_t frame_height, int64_t frame_width) const {
  if (frame_height <= 0 || frame_width <= 0) check(AVERROR_INVALIDDATA);  // libav found no size
  require_within(limits_, frame_height, frame_width, where_);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const Source& source, const std::string& where,
                                      const ReadLimits& limits) {
  return std::make_unique<LibavDecoder>(source, where, limits);
}

std::string read_comment(const Source& source, const std::string& where) {
  silence_libav();
  begin_libav();
  const SourceReader reader(source);
  const Opened opened = open_demuxer(reader, where);
  const AVDictionaryEntry* const entry = av_dict_get(opened.demuxer->metadata, "comment", nullptr, 0);
  return entry ? entry->value : "";
}

}  // namespace tessera::media
