#include "media/video_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"
#include "media/codecs.h"
#include "media/whole_file.h"

namespace tessera::media {
namespace {

// A regular file that is open, as a source.
Source open_source(const std::filesystem::path& path) {
  const std::string name = path.string();
  require_regular_file(path);
  const int number = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (number < 0) input_error(name, "cannot read: {}", system_reason(errno));
  const auto close = [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  };
  const std::shared_ptr<int> descriptor(new int(number), close);
  const auto read = [descriptor](int64_t offset, std::span<std::byte> to) {
    return static_cast<int64_t>(
        uninterrupted([&] { return ::pread(*descriptor, to.data(), to.size(), offset); }));
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

void check_source(const Source& source, const std::string& where) {
  if (source.size == 0) input_error(where, "the file is empty");
  std::array<char, 64> beginning = {};
  const int64_t count = source.read(0, std::as_writable_bytes(std::span(beginning)));
  if (count < 0) input_error(where, "cannot read the file");
  refuse_git_lfs_pointer({beginning.data(), static_cast<size_t>(count)}, where);
  const std::optional<int64_t> stated = stated_size(source);
  if (stated && *stated > source.size)
    input_error(where, "the file is cut off: it has {} bytes and needs at least {}", source.size, *stated);
}

std::unique_ptr<Decoder> open_decoder(const Source& source, const std::string& where,
                                      const ReadLimits& limits) {
  check_source(source, where);
  return codecs().make_decoder(source, where, limits);
}

}  // namespace

VideoReader::VideoReader(const std::filesystem::path& path, const ReadLimits& limits)
    : decoder_(open_decoder(open_source(path), path.string(), limits)) {}

VideoReader::VideoReader(std::span<const std::byte> bytes, const std::string& where, const ReadLimits& limits)
    : decoder_(open_decoder(memory_source(bytes), where, limits)) {}

VideoReader::~VideoReader() = default;
VideoReader::VideoReader(VideoReader&&) noexcept = default;
VideoReader& VideoReader::operator=(VideoReader&&) noexcept = default;

int64_t VideoReader::height() const {
  return decoder_->height;
}

int64_t VideoReader::width() const {
  return decoder_->width;
}

double VideoReader::fps() const {
  return decoder_->fps;
}

std::optional<Image> VideoReader::next() {
  return decoder_->next();
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
