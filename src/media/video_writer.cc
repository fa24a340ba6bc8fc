#include "media/video_writer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "media/encoder.h"
#include "media/libav.h"
#include "media/png_frames.h"

namespace tessera::media {
namespace {

std::string suffix_of(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return suffix;
}

std::unique_ptr<VideoWriter::Sink> make_sink(const std::filesystem::path& path, const VideoFormat& format) {
  const std::string suffix = suffix_of(path);
  if (suffix == ".mp4") return encode_mp4(path, format);
  if (suffix == ".webm") return encode_webm(path, format);
  if (suffix == ".gif") return encode_gif(path, format);
  if (suffix == ".png") return write_png_frames(path, format);
  usage_error(path.string(), "not the name of a video; give it one of the suffixes {}",
              fmt::join(video_suffixes(), ", "));
}

}  // namespace

const std::vector<std::string>& video_suffixes() {
  static const std::vector<std::string> suffixes = {".mp4", ".webm", ".gif", ".png"};
  return suffixes;
}

bool is_video_path(const std::filesystem::path& path) {
  return std::ranges::find(video_suffixes(), suffix_of(path)) != video_suffixes().end();
}

FrameRate to_frame_rate(double fps) {
  TESSERA_CHECK(fps >= 0.01 && fps <= 1000, "{} frames a second", fps);
  constexpr double kRounded = 1e-3;  // 23.976 for 23.97602...
  const double whole = std::ceil(fps);
  if (fps != whole && std::abs(whole * 1000 / 1001 - fps) < kRounded)
    return {.numerator = static_cast<int>(whole) * 1000, .denominator = 1001};
  const AVRational rate = av_d2q(fps, 1'000'000);
  return {.numerator = rate.num, .denominator = rate.den};
}

VideoWriter::VideoWriter(const std::filesystem::path& path, const VideoFormat& format)
    : frame_bytes_(static_cast<size_t>(format.height * format.width * 3)) {
  TESSERA_CHECK(format.height > 0 && format.width > 0, "{} x {} frames", format.height, format.width);
  sink_ = make_sink(path, format);
}

VideoWriter::~VideoWriter() = default;
VideoWriter::VideoWriter(VideoWriter&&) noexcept = default;
VideoWriter& VideoWriter::operator=(VideoWriter&&) noexcept = default;

void VideoWriter::write(std::span<const uint8_t> frame) {
  TESSERA_CHECK(frame.size() == frame_bytes_, "a frame of {} bytes, not {}", frame.size(), frame_bytes_);
  sink_->write(frame);
  ++frames_;
}

void VideoWriter::commit() {
  TESSERA_CHECK(frames_ > 0, "a video without frames");
  sink_->commit();
}

}  // namespace tessera::media
