#include "media/file_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "core/image.h"
#include "media/codecs.h"
#include "media/exif.h"

namespace tessera::media {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPng = "\x89PNG\r\n\x1A\n"sv;

uint32_t big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

// Returns those chunks of a PNG that its text needs, wherever they are, and the beginning of its pixels.
std::string png_without_pixels(const Source& source) {
  constexpr int64_t kAround = 12;  // length, type and checksum of a chunk
  constexpr std::array kKept = {"IHDR"sv, "PLTE"sv, "tEXt"sv, "zTXt"sv, "iTXt"sv};
  std::string kept(kPng);
  for (auto at = static_cast<int64_t>(kPng.size()); at + kAround <= source.size;) {
    const std::string head = read_bytes(source, at, 8);
    if (head.size() < 8) break;
    const int64_t size = kAround + big_endian(std::string_view(head).substr(0, 4));
    if (std::ranges::find(kKept, std::string_view(head).substr(4)) != kKept.end())
      kept += read_bytes(source, at, size);
    at += size;
  }
  return kept + std::string("\0\0\0\0IDAT"sv);
}

std::optional<std::string> settings_of_png(const Source& source, const std::string& where) {
  for (const auto& [keyword, text] : decode_png_text(png_without_pixels(source), where)) {
    if (keyword == "tessera") return text;
  }
  return std::nullopt;
}

std::optional<std::string> settings_of_exif(const Source& source) {
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const std::string file = read_bytes(source, 0, kMostBytes);
  auto text = exif_description(find_exif(file));
  return text && text->starts_with('{') ? text : std::nullopt;
}

// The prompt comes first and may have several lines; the settings are one line.
std::optional<std::string> settings_of_comment(const std::string& comment) {
  constexpr std::string_view kKeyword = "\ntessera: {";
  const size_t begin = comment.rfind(kKeyword);
  if (begin == std::string::npos) return std::nullopt;
  const size_t text = begin + kKeyword.size() - 1;
  return comment.substr(text, comment.find('\n', text) - text);
}

}  // namespace

std::optional<FileText> read_file_text(const Source& source, const std::string& where) {
  const std::string begin = read_bytes(source, 0, 16);
  const auto has = [&](size_t at, std::string_view text) {
    return begin.size() >= at && std::string_view(begin).substr(at).starts_with(text);
  };
  if (has(0, kPng)) return FileText{.kind = "PNG", .settings = settings_of_png(source, where)};
  if (has(0, "\xFF\xD8")) return FileText{.kind = "JPEG", .settings = settings_of_exif(source)};
  if (has(0, "RIFF") && has(8, "WEBP")) return FileText{.kind = "WebP", .settings = settings_of_exif(source)};
  if (has(0, "GIF8")) return FileText{.kind = "GIF", .may_have_settings = false};
  const bool is_mp4 = has(4, "ftyp");
  if (is_mp4 || has(0, "\x1A\x45\xDF\xA3"))
    return FileText{.kind = is_mp4 ? "MP4" : "WebM",
                    .settings = settings_of_comment(codecs().read_comment(source, where))};
  return std::nullopt;
}

}  // namespace tessera::media
