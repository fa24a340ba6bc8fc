#include "media/whole_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace tessera::media {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;

// Reads the bytes at a place; there may be fewer at the end of the file.
class Bytes {
 public:
  Bytes(const Source& source, int64_t offset) {
    if (offset >= source.size) return;
    const int64_t count = source.read(offset, std::as_writable_bytes(std::span(bytes_)));
    size_ = count > 0 ? static_cast<size_t>(count) : 0;
  }

  bool has(size_t begin, std::string_view text) const {
    return size_ >= begin + text.size() && std::string_view(&bytes_[begin], text.size()) == text;
  }
  bool any(size_t end) const { return size_ >= end; }
  std::string_view text(size_t begin, size_t count) const { return {&bytes_[begin], count}; }
  uint64_t byte(size_t at) const { return static_cast<uint8_t>(bytes_[at]); }
  uint64_t big_endian(size_t begin, size_t count) const {
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) value = value << 8 | byte(begin + i);
    return value;
  }
  uint64_t little_endian(size_t begin, size_t count) const {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | byte(begin + i);
    return value;
  }

 private:
  std::array<char, 24> bytes_ = {};
  size_t size_ = 0;
};

// ISO/IEC 14496-12 defines boxes with a length and a type, one after the other.
std::optional<int64_t> end_of_boxes(const Source& source) {
  constexpr int kMostBoxes = 10000;
  int64_t offset = 0;
  for (int i = 0; i < kMostBoxes && offset < source.size; ++i) {
    const Bytes box(source, offset);
    if (!box.any(8)) return {};
    uint64_t size = box.big_endian(0, 4);
    if (size == 0) return {};  // up to the end of the file
    const size_t header = size == 1 ? 16 : 8;
    if (size == 1 && box.any(16)) size = box.big_endian(8, 8);
    if (size < header || size > static_cast<uint64_t>(kMost - offset)) return {};
    offset += static_cast<int64_t>(size);
  }
  return offset;
}

// By RFC 8794, an element consists of its ID, its length of one to eight bytes, whose number is given by its
// leading zeros, and its content. A length of all ones means that it is unknown.
std::optional<int64_t> end_of_element(const Source& source, int64_t offset) {
  constexpr size_t kId = 4;
  const Bytes element(source, offset);
  if (!element.any(kId + 1) || element.byte(kId) == 0) return {};
  const auto zeros = static_cast<size_t>(std::countl_zero(static_cast<uint8_t>(element.byte(kId))));
  const size_t count = zeros + 1;
  if (!element.any(kId + count)) return {};
  const uint64_t ones = (uint64_t{1} << (7 * count)) - 1;
  const uint64_t size = element.big_endian(kId, count) & ones;
  if (size == ones || size > static_cast<uint64_t>(kMost)) return {};
  return offset + static_cast<int64_t>(kId + count + size);
}

// A GIF 89a consists of blocks, each with a chain of parts of at most 255 bytes, and of a byte that marks the
// end.
std::optional<int64_t> end_of_gif(const Source& source) {
  constexpr int64_t kHeader = 13, kExtension = 2, kImage = 10;
  constexpr uint64_t kExtensionMark = 0x21, kImageMark = 0x2C, kEndMark = 0x3B, kHasTable = 0x80;
  constexpr int kMostParts = 1 << 22;
  const auto table = [](uint64_t flags) { return (flags & kHasTable) != 0 ? int64_t{6} << (flags & 7) : 0; };
  const Bytes start(source, 0);
  int64_t offset = kHeader + (start.any(kHeader) ? table(start.byte(10)) : 0);
  for (int i = 0; i < kMostParts && offset < source.size;) {
    const Bytes block(source, offset);
    if (block.byte(0) == kEndMark) return offset + 1;
    if (block.byte(0) == kExtensionMark) {
      offset += kExtension;
    } else if (block.byte(0) == kImageMark) {
      offset += kImage + table(block.byte(9)) + 1;
    } else {
      return {};
    }
    for (int64_t size = 1; size > 0 && offset < source.size; ++i) {
      size = static_cast<int64_t>(Bytes(source, offset).byte(0));
      offset += size + 1;
    }
  }
  if (offset < source.size) return {};
  return offset + 1;
}

// PNG (ISO/IEC 15948): chunks of a length, a type, content and a checksum; the last one is IEND.
std::optional<int64_t> end_of_png(const Source& source) {
  constexpr int64_t kSignature = 8, kBesideContent = 12;
  constexpr int kMostChunks = 1 << 22;
  const auto is_letter = [](char each) { return std::isalpha(static_cast<unsigned char>(each)) != 0; };
  int64_t offset = kSignature;
  for (int i = 0; i < kMostChunks; ++i) {
    const Bytes chunk(source, offset);
    if (!chunk.any(8)) return offset + kBesideContent;
    const std::string_view type = chunk.text(4, 4);
    if (!std::all_of(type.begin(), type.end(), is_letter)) return {};
    offset += kBesideContent + static_cast<int64_t>(chunk.big_endian(0, 4));
    if (offset > source.size || type == "IEND") return offset;
  }
  return {};
}

// JPEG (ITU-T T.81): segments of a marker and a length until the first scan, followed by data in which a byte
// 0xFF never precedes the end marker's, until the end.
std::optional<int64_t> end_of_jpeg(const Source& source) {
  constexpr uint64_t kMark = 0xFF, kScan = 0xDA, kEnd = 0xD9;
  constexpr int64_t kPart = 1 << 16;
  const int64_t more = source.size + 1;
  int64_t offset = 2;
  for (uint64_t kind = 0; kind != kScan;) {
    const Bytes segment(source, offset);
    if (!segment.any(2)) return more;
    if (segment.byte(0) != kMark) return {};
    kind = segment.byte(1);
    if (kind == kEnd) return offset + 2;
    if (kind == kMark) {  // fills up
      ++offset;
      continue;
    }
    if (!segment.any(4)) return more;
    offset += 2 + static_cast<int64_t>(segment.big_endian(2, 2));
  }
  for (; offset < source.size; offset += kPart) {
    const size_t end = read_bytes(source, offset, kPart + 1).find("\xFF\xD9");
    if (end != std::string::npos) return offset + static_cast<int64_t>(end) + 2;
  }
  return std::max(offset, more);
}

}  // namespace

std::optional<int64_t> stated_size(const Source& source) {
  const Bytes start(source, 0);
  for (const char* type : {"ftyp", "moov", "mdat", "wide", "free", "skip"}) {
    if (start.has(4, type)) return end_of_boxes(source);
  }
  if (start.has(0, "\x1A\x45\xDF\xA3")) {
    const std::optional<int64_t> head = end_of_element(source, 0);
    if (!head || !Bytes(source, *head).has(0, "\x18\x53\x80\x67")) return {};
    return end_of_element(source, *head);
  }
  if (start.has(0, "GIF8")) return end_of_gif(source);
  if (start.has(0, "\x89PNG\r\n\x1A\n")) return end_of_png(source);
  if (start.has(0, "\xFF\xD8\xFF")) return end_of_jpeg(source);
  if (start.has(0, "RIFF") && start.has(8, "WEBP"))
    return static_cast<int64_t>(start.little_endian(4, 4)) + 8;
  return {};
}

bool is_animated_webp(std::string_view beginning) {
  constexpr size_t kFlags = 20;
  constexpr unsigned kIsAnimated = 2;
  return beginning.size() > kFlags && beginning.starts_with("RIFF") &&
         beginning.substr(8).starts_with("WEBPVP8X") &&
         (static_cast<unsigned char>(beginning[kFlags]) & kIsAnimated) != 0;
}

}  // namespace tessera::media
