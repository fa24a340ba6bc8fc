#include "media/video_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "media/codecs.h"
#include "media/png_frames.h"
#include "media/suffix.h"

namespace tessera::media {
namespace {

class EncodedFile : public VideoWriter::Sink {
 public:
  EncodedFile(Container container, const std::filesystem::path& path, const VideoFormat& format)
      : file_(path), encoder_(codecs().make_encoder(container, path.string(), format)) {}

  void write(std::span<const uint8_t> frame) override { file_.write(encoder_->encode(frame)); }

  void commit() override {
    file_.write(encoder_->finish());
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::unique_ptr<Encoder> encoder_;
};

// Returns nothing for PNG frames, which do not need a codec.
std::optional<Container> container_of(const std::filesystem::path& path, const VideoFormat& format) {
  const std::string suffix = suffix_of(path);
  if (suffix == ".mp4") return Container::kMp4;
  if (suffix == ".webm") return Container::kWebm;
  if (suffix == ".png") return std::nullopt;
  if (suffix != ".gif")
    usage_error(path.string(), "not the name of a video; give it one of the suffixes {}",
                fmt::join(video_suffixes(), ", "));
  if (format.fps > kMostGifFps)
    usage_error(path.string(), "a GIF shows at most {} frames a second, not {}", kMostGifFps, format.fps);
  return Container::kGif;
}

std::unique_ptr<VideoWriter::Sink> make_sink(const std::filesystem::path& path, const VideoFormat& format) {
  const std::optional<Container> container = container_of(path, format);
  if (container) return std::make_unique<EncodedFile>(*container, path, format);
  return write_png_frames(path, format);
}

}  // namespace

const std::vector<std::string>& video_suffixes() {
  static const std::vector<std::string> suffixes = {".mp4", ".webm", ".gif", ".png"};
  return suffixes;
}

bool is_video_path(const std::filesystem::path& path) {
  return std::ranges::find(video_suffixes(), suffix_of(path)) != video_suffixes().end();
}

void require_encodable(const std::filesystem::path& path, const VideoFormat& format) {
  if (const auto container = container_of(path, format))
    codecs().make_encoder(*container, path.string(), format);
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
