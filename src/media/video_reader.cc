#include "media/video_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

extern "C" {
#include <libavutil/avstring.h>
#include <libavutil/pixdesc.h>
}

#include "core/error.h"
#include "core/file.h"
#include "media/colours.h"
#include "media/libav.h"
#include "media/whole_file.h"

namespace tessera::media {
namespace {

// Kinds that hold all that they show: a playlist could name other files, or a place in a network.
constexpr const char* kStills = "png_pipe,jpeg_pipe,webp_pipe";
constexpr const char* kVideos = "mov,mp4,matroska,webm,avi,gif,apng";
constexpr const char* kReadable = "PNG, JPEG, WebP, GIF, MP4, MOV, WebM, MKV and AVI";
constexpr const char* kDecoders =
    "h264,hevc,av1,libdav1d,vp8,vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4v2,msmpeg4,h263,theora,prores,dnxhd,"
    "ffv1,huffyuv,"
    "ffvhuff,utvideo,rawvideo,qtrle,mjpeg,png,apng,gif,webp";

// A regular file that is open, as a source.
Source open_source(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code code;
  if (!std::filesystem::exists(path, code)) input_error(name, "no such file");
  if (!std::filesystem::is_regular_file(path, code)) input_error(name, "not a regular file");
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (number < 0) input_error(name, "cannot read: {}", std::generic_category().message(errno));
  const auto close = [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  };
  const std::shared_ptr<int> descriptor(new int(number), close);
  const auto read = [descriptor](int64_t offset, std::span<std::byte> to) {
    ssize_t count = 0;
    do {
      count = ::pread(*descriptor, to.data(), to.size(), offset);
    } while (count < 0 && errno == EINTR);
    return static_cast<int64_t>(count);
  };
  const off_t size = ::lseek(number, 0, SEEK_END);
  return {.size = std::max<int64_t>(size, 0), .read = read};
}

Source memory_source(std::span<const std::byte> bytes) {
  const auto read = [bytes](int64_t offset, std::span<std::byte> to) {
    const auto from = bytes.subspan(static_cast<size_t>(offset));
    const size_t count = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), count);
    return static_cast<int64_t>(count);
  };
  return {.size = static_cast<int64_t>(bytes.size()), .read = read};
}

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EACCES);
}

}  // namespace

class VideoReader::State {
 public:
  State(Source source, std::string where, const ReadLimits& limits)
      : source_(std::move(source)), where_(std::move(where)), limits_(limits), reader_(source_) {
    silence_libav();
    begin_libav();
    check_source();
    open_demuxer();
    open_codec();
    packet_ = owned<Packet>(av_packet_alloc());
    frame_ = owned<Frame>(av_frame_alloc());
    first_ = decode();
    if (!first_) input_error(where_, "holds no frame");
    height = first_->height;
    width = first_->width;
  }

  std::optional<Image> next() {
    if (first_) return std::exchange(first_, {});
    if (is_still_) return {};
    begin_libav();
    return decode();
  }

  double fps() const {
    const AVStream& stream = *demuxer_->streams[stream_];
    const AVRational rate = stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
    return is_still_ || rate.num <= 0 || rate.den <= 0 ? 0 : av_q2d(rate);
  }

  int64_t height = 0, width = 0;

 private:
  void check_source() const;
  void open_demuxer();
  void find_stream();
  void open_codec();
  std::optional<Image> decode();
  void feed();
  void check_size(int64_t frame_height, int64_t frame_width) const;
  void check(int code) const {
    // Damaged tables have lengths that no memory holds.
    if (code == AVERROR(ENOMEM)) input_error(where_, "needs more memory than there is, or is damaged");
    if (code < 0) input_error(where_, "cannot be read as an image or video: {}", libav_reason(code));
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
  std::optional<Image> first_;  // is read to know the size
  bool is_still_ = false;
  int stream_ = -1;
};

void VideoReader::State::check_source() const {
  if (source_.size == 0) input_error(where_, "the file is empty");
  std::array<char, 64> beginning = {};
  const int64_t count = source_.read(0, std::as_writable_bytes(std::span(beginning)));
  if (count < 0) input_error(where_, "cannot read the file");
  refuse_git_lfs_pointer({beginning.data(), static_cast<size_t>(count)}, where_);
  const std::optional<int64_t> stated = stated_size(source_);
  if (stated && *stated > source_.size)
    input_error(where_, "the file is cut off: it has {} bytes and needs at least {}", source_.size, *stated);
}

void VideoReader::State::open_demuxer() {
  const AVInputFormat* kind = nullptr;
  const int found = av_probe_input_buffer2(reader_.io(), &kind, "", nullptr, 0, 0);
  is_still_ = found >= 0 && av_match_list(kind->name, kStills, ',') > 0;
  if (found < 0 || (!is_still_ && av_match_list(kind->name, kVideos, ',') <= 0))
    input_error(where_, "not an image or video; {} files are read", kReadable);

  AVFormatContext* made = avformat_alloc_context();
  if (!made) throw std::bad_alloc();
  made->pb = reader_.io();
  made->io_open = refuse_to_open;
  AVDictionary* options = nullptr;
  av_dict_set(&options, "codec_whitelist", kDecoders, 0);
  const int opened = avformat_open_input(&made, "", kind, &options);  // frees the context if it fails
  const Options left(options);
  check(opened);
  demuxer_.reset(made);
  find_stream();
}

void VideoReader::State::find_stream() {
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

void VideoReader::State::open_codec() {
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
  codec_->err_recognition = AV_EF_EXPLODE;  // libav repairs what it can by default
  check(avcodec_open2(codec_.get(), codec, nullptr));
  to_rgb_.emplace(is_still_);
}

// Hands the next packet of the track to the codec, or tells it that there is none.
void VideoReader::State::feed() {
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

std::optional<Image> VideoReader::State::decode() {
  while (true) {
    const int code = avcodec_receive_frame(codec_.get(), frame_.get());
    if (code == AVERROR_EOF) return {};
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
    if (sws_isSupportedInput(static_cast<AVPixelFormat>(frame_->format)) == 0)
      input_error(where_, "its pixels cannot be converted to RGB");
    return (*to_rgb_)(*frame_);
  }
}

void VideoReader::State::check_size(int64_t frame_height, int64_t frame_width) const {
  if (frame_height <= 0 || frame_width <= 0) check(AVERROR_INVALIDDATA);  // libav found none
  if (frame_height > limits_.side || frame_width > limits_.side ||
      frame_height * frame_width > limits_.pixels) {
    input_error(where_, "{} x {} pixels; at most {} a side and {} in all are read", frame_height, frame_width,
                limits_.side, limits_.pixels);
  }
}

VideoReader::VideoReader(const std::filesystem::path& path, const ReadLimits& limits)
    : state_(std::make_unique<State>(open_source(path), path.string(), limits)) {}

VideoReader::VideoReader(std::span<const std::byte> bytes, const std::string& where, const ReadLimits& limits)
    : state_(std::make_unique<State>(memory_source(bytes), where, limits)) {}

VideoReader::~VideoReader() = default;
VideoReader::VideoReader(VideoReader&&) noexcept = default;
VideoReader& VideoReader::operator=(VideoReader&&) noexcept = default;

int64_t VideoReader::height() const {
  return state_->height;
}

int64_t VideoReader::width() const {
  return state_->width;
}

double VideoReader::fps() const {
  return state_->fps();
}

std::optional<Image> VideoReader::next() {
  return state_->next();
}

Video read_video(const std::filesystem::path& path, int64_t max_frames) {
  VideoReader reader(path);
  Video video{.frames = {}, .fps = reader.fps()};
  while (static_cast<int64_t>(video.frames.size()) < max_frames) {
    std::optional<Image> frame = reader.next();
    if (!frame) break;
    video.frames.push_back(std::move(*frame));
  }
  return video;
}

}  // namespace tessera::media
