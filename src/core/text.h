// Texts: numbers and words as messages show them, UTF-8, Base64, and random names.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Returns "1 rank", "2 ranks", "2 batches": the number with the noun, whose plural is regular.
inline std::string counted(int64_t count, std::string_view noun) {
  const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : hisses ? "es" : "s");
}

std::string count_text(uint64_t count);  // "611.4 M"
std::string bytes_text(uint64_t bytes);  // "1.14 GiB"
// In milliseconds, with three significant digits.
std::string milliseconds_text(double seconds);
// The number without a unit, to four digits or to the second.
std::string seconds_text(double seconds);

// "1.5 s"
inline std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

// Returns the text with spaces in place of control characters: a message is one line, and field() writes
// control characters around the names of fields.
std::string printable(std::string_view text);

// Returns the word of `known` that begins with `word`, or the nearest by edit distance; nothing if none is
// near.
std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known);

// Returns the position of the first byte that is not part of valid UTF-8 (RFC 3629: no overlong forms, no
// surrogates, at most U+10FFFF), or nothing if all of `text` is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// Returns the Latin-1 form of valid UTF-8, or nothing if a character is not in Latin-1.
std::optional<std::string> to_latin1(std::string_view utf8);

// Returns the UTF-8 form of Latin-1 text.
std::string from_latin1(std::string_view latin1);

// The first `most` bytes of `text`, or fewer, so that no character is cut in half.
std::string_view cut_utf8(std::string_view text, size_t most);

// RFC 4648, with padding.
std::string encode_base64(std::string_view bytes);
// Line breaks are skipped, and padding may be missing. Returns nothing for other characters, for an
// impossible length, and for nonzero bits beyond the last byte.
std::optional<std::string> decode_base64(std::string_view text);

// FNV-1a, 64 bits: detects mistakes, not manipulation.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325U;
};

// Fills the bytes with unpredictable random ones from the system.
void random_bytes(std::span<std::byte> bytes);

// Returns eight hexadecimal digits for each of `words` 32-bit random words from the system.
std::string random_name(int words = 4);

}  // namespace tessera
