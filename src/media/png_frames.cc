#include "media/png_frames.h"

#include <optional>
#include <utility>

#include "core/file.h"

namespace tessera::media {
namespace {

class PngFrames : public VideoWriter::Sink {
 public:
  PngFrames(const std::filesystem::path& path, const VideoFormat& format) : path_(path), format_(format) {
    constexpr int kDigits = 4;
    require_writable(numbered_path(path, 0, kDigits));  // that of the first frame, if there are several
  }

  void write(std::span<const uint8_t> frame) override {
    std::string file =
        encode_png({.height = format_.height, .width = format_.width, .pixels = {frame.begin(), frame.end()}},
                   format_.text);
    if (first_.empty()) {
      first_ = std::move(file);
      return;
    }
    if (!sequence_) sequence_.emplace(path_).add(first_);
    sequence_->add(file);
  }

  void commit() override {
    if (sequence_) return sequence_->commit();
    AtomicFile file(path_);
    file.write(first_);
    file.commit();
  }

 private:
  std::filesystem::path path_;
  VideoFormat format_;
  std::string first_;  // gets a name without a number if it remains the only one
  std::optional<AtomicSequence> sequence_;
};

}  // namespace

std::unique_ptr<VideoWriter::Sink> write_png_frames(const std::filesystem::path& path,
                                                    const VideoFormat& format) {
  return std::make_unique<PngFrames>(path, format);
}

}  // namespace tessera::media
