#include "media/exif.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/error.h"

namespace tessera::media {
namespace {

using namespace std::string_view_literals;

enum Tag : uint16_t {
  kImageDescription = 0x010E,
  kOrientation = 0x0112,
  kSoftware = 0x0131,
  kExifEntries = 0x8769,
  kUserComment = 0x9286
};
enum Type : uint16_t { kAscii = 2, kLong = 4, kUndefined = 7 };

constexpr std::string_view kTiff = "MM\0*\0\0\0\x08"sv;  // the first entries follow immediately
constexpr size_t kEntryBytes = 12;
constexpr std::string_view kJpegMark = "Exif\0\0"sv;

std::string big_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}

std::string little_endian(uint64_t value, int bytes) {
  std::string text = big_endian(value, bytes);
  std::reverse(text.begin(), text.end());
  return text;
}

// Reads `bytes` bytes at `at`, big-endian, or 0 beyond the end.
uint64_t number_at(std::string_view from, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i)
    value = value << 8 | (at + i < from.size() ? static_cast<unsigned char>(from[at + i]) : 0);
  return value;
}

uint64_t little_number_at(std::string_view from, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | number_at(from, at + i, 1);
  return value;
}

std::string entry(Tag tag, Type type, size_t count, size_t value) {
  return big_endian(tag, 2) + big_endian(type, 2) + big_endian(count, 4) + big_endian(value, 4);
}

// Encodes valid UTF-8 as big-endian UTF-16.
std::string to_utf16(std::string_view utf8) {
  std::string result;
  for (size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t code = length == 1 ? lead : lead & (0xFFU >> (length + 1));
    for (size_t k = 1; k < length; ++k) code = code << 6 | (static_cast<unsigned char>(utf8[i + k]) & 0x3F);
    i += length;
    if (code < 0x10000) {
      result += big_endian(code, 2);
    } else {
      result += big_endian(0xD800 + ((code - 0x10000) >> 10), 2) + big_endian(0xDC00 + (code & 0x3FF), 2);
    }
  }
  return result;
}

std::string text_of(const ImageText& text, std::string_view keyword) {
  for (const auto& [key, value] : text) {
    if (key == keyword) return value;
  }
  return "";
}

}  // namespace

std::string encode_exif(const ImageText& text) {
  // A text ends with a zero, which is counted. A text of at most four bytes would be stored in its entry.
  std::string description = text_of(text, "tessera") + '\0', software = text_of(text, "Software") + '\0';
  for (std::string* each : {&description, &software}) each->resize(std::max<size_t>(each->size(), 5), '\0');
  const std::string comment = std::string("UNICODE\0"sv) + to_utf16(text_of(text, "parameters"));
  const size_t exif_at = kTiff.size() + 2 + 3 * kEntryBytes + 4, values_at = exif_at + 2 + kEntryBytes + 4;
  const size_t comment_at = values_at, description_at = comment_at + comment.size(),
               software_at = description_at + description.size();
  std::string block(kTiff);
  block += big_endian(3, 2) + entry(kImageDescription, kAscii, description.size(), description_at) +
           entry(kSoftware, kAscii, software.size(), software_at) + entry(kExifEntries, kLong, 1, exif_at) +
           big_endian(0, 4);
  block += big_endian(1, 2) + entry(kUserComment, kUndefined, comment.size(), comment_at) + big_endian(0, 4);
  return block + comment + description + software;
}

std::optional<std::string> exif_description(std::string_view exif) {
  if (!exif.starts_with(kTiff)) return std::nullopt;
  const size_t count = number_at(exif, kTiff.size(), 2);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = kTiff.size() + 2 + i * kEntryBytes;
    if (number_at(exif, at, 2) != kImageDescription) continue;
    const size_t length = number_at(exif, at + 4, 4), value_at = number_at(exif, at + 8, 4);
    if (length <= 4 || value_at > exif.size() || length > exif.size() - value_at) return std::nullopt;
    const std::string_view value = exif.substr(value_at, length);
    return std::string(value.substr(0, value.find('\0')));
  }
  return std::nullopt;
}

int exif_orientation(std::string_view exif) {
  const bool is_little = exif.starts_with("II*\0"sv);
  if (!is_little && !exif.starts_with("MM\0*"sv)) return 1;
  const auto number = [&](size_t at, size_t bytes) {
    return static_cast<size_t>(is_little ? little_number_at(exif, at, bytes) : number_at(exif, at, bytes));
  };
  const size_t entries = number(4, 4);
  for (size_t i = 0; i < number(entries, 2); ++i) {
    const size_t at = entries + 2 + i * kEntryBytes;
    if (number(at, 2) == kOrientation) return static_cast<int>(number(at + 8, 2));
  }
  return 1;
}

std::string jpeg_with_exif(std::string_view jpeg, std::string_view exif) {
  TESSERA_CHECK(jpeg.starts_with("\xFF\xD8") && exif.size() <= kMostJpegExif, "{} bytes of EXIF",
                exif.size());
  std::string file(jpeg.substr(0, 2));
  file += "\xFF\xE1" + big_endian(2 + kJpegMark.size() + exif.size(), 2);
  file.append(kJpegMark).append(exif).append(jpeg.substr(2));
  return file;
}

std::string webp_with_exif(std::string_view webp, std::string_view exif, int64_t height, int64_t width) {
  constexpr size_t kHeader = 12;  // RIFF, a length, WEBP
  TESSERA_CHECK(webp.substr(kHeader).starts_with("VP8 "), "not a simple WebP file");
  constexpr uint64_t kHasExif = 8;
  std::string body = "WEBPVP8X" + little_endian(10, 4) + little_endian(kHasExif, 4) +
                     little_endian(static_cast<uint64_t>(width - 1), 3) +
                     little_endian(static_cast<uint64_t>(height - 1), 3);
  body.append(webp.substr(kHeader)).append("EXIF" + little_endian(exif.size(), 4)).append(exif);
  if (exif.size() % 2 != 0) body += '\0';
  return "RIFF" + little_endian(body.size(), 4) + body;
}

std::string_view find_exif(std::string_view file) {
  if (file.starts_with("\xFF\xD8")) {
    // Looks through the segments up to the one with pixels; each has a length that includes itself.
    for (size_t at = 2; number_at(file, at, 1) == 0xFF && number_at(file, at + 1, 1) != 0xDA;) {
      const size_t length = number_at(file, at + 2, 2);
      if (length < 2 || at + 2 + length > file.size()) break;
      const std::string_view segment = file.substr(at + 4, length - 2);
      if (number_at(file, at + 1, 1) == 0xE1 && segment.starts_with(kJpegMark))
        return segment.substr(kJpegMark.size());
      at += 2 + length;
    }
  } else if (file.starts_with("RIFF") && file.find("WEBP") == 8) {
    for (size_t at = 12; at + 8 <= file.size();) {
      const size_t length = little_number_at(file, at + 4, 4);
      if (length > file.size() - at - 8) break;
      if (file.substr(at).starts_with("EXIF")) {
        std::string_view block = file.substr(at + 8, length);
        // some programs write it in this way
        if (block.starts_with(kJpegMark)) block.remove_prefix(kJpegMark.size());
        return block;
      }
      at += 8 + length + length % 2;
    }
  } else if (file.starts_with("\x89PNG")) {
    constexpr size_t kSignature = 8, kAround = 12;  // length, type and checksum of a chunk
    for (size_t at = kSignature; at + kAround <= file.size();) {
      const size_t length = number_at(file, at, 4);
      if (length > file.size() - at - kAround) break;
      if (file.substr(at + 4).starts_with("eXIf")) return file.substr(at + 8, length);
      at += kAround + length;
    }
  }
  return {};
}

}  // namespace tessera::media
