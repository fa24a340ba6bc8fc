#include "core/utf8.h"

namespace tessera {
namespace {

// The length in bytes of the sequence that begins with `lead`; 0 if no sequence does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

bool valid_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  for (size_t i = 1; i < bytes.size(); ++i) {
    if ((byte(i) & 0xC0) != 0x80) return false;
  }
  if (bytes.size() < 3) return true;
  switch (byte(0)) {
    case 0xE0:
      return byte(1) >= 0xA0;  // overlong
    case 0xED:
      return byte(1) <= 0x9F;  // surrogates
    case 0xF0:
      return byte(1) >= 0x90;  // overlong
    case 0xF4:
      return byte(1) <= 0x8F;  // above U+10FFFF
    default:
      return true;
  }
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(static_cast<unsigned char>(text[i]));
    if (length == 0 || length > text.size() - i || !valid_sequence(text.substr(i, length))) return i;
    i += length;
  }
  return std::nullopt;
}

std::string_view cut_utf8(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  // A continuation at the cut belongs to a character that began before it, at most three bytes.
  while (end > 0 && most - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::optional<std::string> to_latin1(std::string_view utf8) {
  std::string result;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      result += utf8[i];
    } else if (lead <= 0xC3 && i + 1 < utf8.size()) {
      const auto next = static_cast<unsigned char>(utf8[++i]);
      result += static_cast<char>((lead & 0x03) << 6 | (next & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return result;
}

std::string from_latin1(std::string_view latin1) {
  std::string result;
  for (const char c : latin1) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      result += c;
    } else {
      result += static_cast<char>(0xC0 | code >> 6);
      result += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return result;
}

}  // namespace tessera
