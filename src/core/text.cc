#include "core/text.h"

#include <fmt/format-inl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

// The compiled part of fmt, once for the whole program: the headers that libtorch ships come without fmt's
// library, and as a header-only library, fmt would add five seconds of compile time to every source that
// formats a text.
FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);

}  // namespace detail
FMT_END_NAMESPACE

namespace tessera {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

// Returns the length in bytes of the sequence that begins with `lead`, or 0 if it does not begin one.
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

std::string count_text(uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1000) return fmt::format("{}", count);
  if (value < 1e6) return fmt::format("{:.1f} K", value / 1e3);
  if (value < 1e9) return fmt::format("{:.1f} M", value / 1e6);
  if (value < 1e12) return fmt::format("{:.2f} G", value / 1e9);
  if (value < 1e15) return fmt::format("{:.2f} T", value / 1e12);
  return fmt::format("{:.2f} P", value / 1e15);
}

std::string bytes_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1 << 20) return fmt::format("{:.1f} KiB", value / 1024);
  if (value < 1 << 30) return fmt::format("{:.1f} MiB", value / (1 << 20));
  if (value < 1024.0 * (1 << 30)) return fmt::format("{:.2f} GiB", value / (1 << 30));
  return fmt::format("{:.2f} TiB", value / (1024.0 * (1 << 30)));
}

std::string milliseconds_text(double seconds) {
  const double value = seconds * 1e3;
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string seconds_text(double seconds) {
  return seconds >= 1000 ? fmt::format("{:.0f}", seconds) : fmt::format("{:.4g}", seconds);
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return result;
}

std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // A prefix of a word counts as close to it.
    const size_t distance = candidate.starts_with(word) ? 1 : edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

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
  // A continuation byte at the cut belongs to a character that began at most three bytes before it.
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

std::string encode_base64(std::string_view bytes) {
  std::string result((bytes.size() + 2) / 3 * 4, '=');
  char* to = result.data();
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(bytes[i]); };
  const auto put = [&](uint32_t group, size_t digits) {
    for (size_t j = 0; j < digits; ++j) *to++ = kBase64Digits[group >> (18 - 6 * j) & 63];
  };
  size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3) put(byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2), 4);
  if (bytes.size() - i == 1) put(byte(i) << 16, 2);
  if (bytes.size() - i == 2) put(byte(i) << 16 | byte(i + 1) << 8, 3);
  return result;
}

std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<int8_t, 256> values = [] {
    std::array<int8_t, 256> table;
    table.fill(-1);
    for (size_t i = 0; i < kBase64Digits.size(); ++i)
      table[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<int8_t>(i);
    return table;
  }();
  std::string result;
  result.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;  // of bits that are waiting
  size_t digits = 0, padding = 0;
  for (const char c : text) {
    if (c == '\r' || c == '\n') continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const int8_t value = values[static_cast<unsigned char>(c)];
    if (value < 0 || padding > 0) return std::nullopt;
    bits = (bits << 6 | static_cast<uint8_t>(value)) & 0xffffff;
    ++digits;
    if ((count += 6) >= 8) result += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  const bool is_whole = digits % 4 != 1 && (padding == 0 || (digits + padding) % 4 == 0) && padding <= 2;
  if (!is_whole || (bits & ((1U << count) - 1)) != 0) return std::nullopt;
  return result;
}

// std::random_device is not used, because it queries the processor each time one is made, which takes 15 us
// under a hypervisor.
void random_bytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "no random bytes");
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

std::string random_name(int words) {
  std::string name;
  for (int i = 0; i < words; ++i) {
    uint32_t word = 0;
    random_bytes(std::as_writable_bytes(std::span(&word, 1)));
    name += fmt::format("{:08x}", word);
  }
  return name;
}

}  // namespace tessera
