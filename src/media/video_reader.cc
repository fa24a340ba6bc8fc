#include "media/video_reader.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "media/codecs.h"
#include "media/exif.h"
#include "media/source.h"
#include "media/whole_file.h"

namespace tessera::media {
namespace {

// The first box of such a file gives its brand.
bool is_heic(std::string_view beginning) {
  constexpr std::string_view kBrands[] = {"heic", "heix", "heim", "heis", "mif1"};
  return beginning.size() >= 12 && beginning.substr(4, 4) == "ftyp" &&
         std::find(std::begin(kBrands), std::end(kBrands), beginning.substr(8, 4)) != std::end(kBrands);
}

void check_source(const Source& source, const std::string& where) {
  if (source.size == 0) input_error(where, "the file is empty");
  constexpr int64_t kBeginning = 64;
  const std::string beginning = read_bytes(source, 0, kBeginning);
  if (beginning.empty()) input_error(where, "cannot read the file");
  refuse_git_lfs_pointer(beginning, where);
  const std::optional<int64_t> stated = stated_size(source);
  if (stated && *stated > source.size)
    input_error(where, "the file is cut off: it has {} bytes and needs at least {}", source.size, *stated);
  for (const std::string_view tiff : {std::string_view("II*\0", 4), std::string_view("MM\0*", 4)}) {
    if (beginning.starts_with(tiff)) input_error(where, "a TIFF, which is not read; convert it to a PNG");
  }
  if (is_heic(beginning)) input_error(where, "a HEIC, which is not read; convert it to a PNG");
  if (is_animated_webp(beginning))
    input_error(where, "an animated WebP, which is not read; convert it to an MP4 or a GIF");
}

// Returns the rotation of a file's pictures: that of an image from its EXIF data, that of a video from its
// track.
Orientation orientation_of(const Source& source, const Decoder& decoder) {
  if (decoder.fps > 0) return decoder.orientation;
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const std::string file = read_bytes(source, 0, kMostBytes);
  const std::string_view exif = find_exif(file);
  return exif.empty() ? decoder.orientation : orientation_of_exif(exif_orientation(exif));
}

// In the header of a PNG, the bits per sample and the colour type follow the size.
bool has_deep_grey(const Source& source) {
  constexpr size_t kBits = 24;
  constexpr std::string_view kDeepGrey("\x10\0", 2);
  const std::string header = read_bytes(source, 0, kBits + kDeepGrey.size());
  return header.starts_with("\x89PNG\r\n") && header.ends_with(kDeepGrey);
}

std::unique_ptr<Decoder> open_decoder(const Source& source, const std::string& where,
                                      const ReadLimits& limits) {
  check_source(source, where);
  const bool is_jpeg = read_bytes(source, 0, 3) == "\xFF\xD8\xFF";
  return (is_jpeg ? codecs().make_jpeg_decoder : codecs().make_decoder)(source, where, limits);
}

}  // namespace

VideoReader::VideoReader(const std::filesystem::path& path, const ReadLimits& limits)
    : VideoReader(open_source(path), path.string(), limits) {}

VideoReader::VideoReader(std::span<const std::byte> bytes, const std::string& where, const ReadLimits& limits)
    : VideoReader(memory_source(bytes), where, limits) {}

VideoReader::VideoReader(const Source& source, const std::string& where, const ReadLimits& limits)
    : decoder_(open_decoder(source, where, limits)),
      orientation_(orientation_of(source, *decoder_)),
      is_deep_grey_(has_deep_grey(source)) {}

VideoReader::~VideoReader() = default;
VideoReader::VideoReader(VideoReader&&) noexcept = default;
VideoReader& VideoReader::operator=(VideoReader&&) noexcept = default;

int64_t VideoReader::height() const {
  return orientation_.is_transposed ? decoder_->width : decoder_->height;
}

int64_t VideoReader::width() const {
  return orientation_.is_transposed ? decoder_->height : decoder_->width;
}

double VideoReader::fps() const {
  return decoder_->fps;
}

double VideoReader::pixel_aspect() const {
  return orientation_.is_transposed ? 1 / decoder_->pixel_aspect : decoder_->pixel_aspect;
}

std::optional<Image> VideoReader::next() {
  std::optional<Image> frame = decoder_->next();
  if (frame) *frame = oriented(std::move(*frame), orientation_);
  return frame;
}

bool VideoReader::skip() {
  return decoder_->skip();
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
