#include "media/still_image.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "media/codecs.h"
#include "media/exif.h"
#include "media/suffix.h"

namespace tessera::media {
namespace {

constexpr int64_t kMostWebpSide = 16383;

// Returns nothing for a PNG, which does not need a codec.
std::optional<ImageFormat> format_of(const std::filesystem::path& path) {
  const std::string suffix = suffix_of(path);
  if (suffix == ".png") return std::nullopt;
  return suffix == ".webp" ? ImageFormat::kWebp : ImageFormat::kJpeg;
}

}  // namespace

const std::vector<std::string>& image_suffixes() {
  static const std::vector<std::string> suffixes = {".png", ".jpg", ".jpeg", ".webp"};
  return suffixes;
}

bool is_image_path(const std::filesystem::path& path) {
  return std::ranges::find(image_suffixes(), suffix_of(path)) != image_suffixes().end();
}

std::string encode_image(const std::filesystem::path& path, const Image& image, const ImageText& text) {
  const auto format = format_of(path);
  if (!format) return encode_png(image, text);
  const std::string bytes = codecs().encode_image(*format, path.string(), image), exif = encode_exif(text);
  return *format == ImageFormat::kJpeg ? jpeg_with_exif(bytes, exif)
                                       : webp_with_exif(bytes, exif, image.height, image.width);
}

void require_encodable(const std::filesystem::path& path, int64_t height, int64_t width,
                       const ImageText& text) {
  const auto format = format_of(path);
  if (!format) return;
  if (*format == ImageFormat::kWebp && std::max(height, width) > kMostWebpSide)
    usage_error(path.string(), "{} x {} pixels: a WebP has at most {} on a side; write a .png", height, width,
                kMostWebpSide);
  if (const size_t bytes = encode_exif(text).size(); *format == ImageFormat::kJpeg && bytes > kMostJpegExif) {
    usage_error(path.string(), "the settings take {} bytes, and a JPEG keeps at most {}; write a .png", bytes,
                kMostJpegExif);
  }
  // This call shows whether FFmpeg has the encoder.
  constexpr int64_t kSide = 8;
  codecs().encode_image(*format, path.string(), {kSide, kSide, std::vector<uint8_t>(3 * kSide * kSide)});
}

}  // namespace tessera::media
