#include "text/charsmap.h"

#include <cstring>

#include "core/counted.h"
#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Longer graphemes are never looked up as a whole.
constexpr size_t kMaxGraphemeBytes = 5;

// The fields of one unit of the double array.
bool has_leaf(uint32_t unit) {
  return ((unit >> 8) & 1U) != 0;
}
uint32_t value(uint32_t unit) {
  return unit & 0x7fffffffU;
}
uint32_t label(uint32_t unit) {
  return unit & 0x800000ffU;
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200U) >> 6);
}

// Whether a byte of UTF-8 is not the first of a character.
bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > blob.size() - sizeof(trie_bytes)) {
    input_error(where, "the normaliser's character map is damaged: {} with a trie of {}",
                counted(static_cast<int64_t>(blob.size()), "byte"), counted(trie_bytes, "byte"));
  }
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), blob.data() + sizeof(trie_bytes), trie_bytes);
  replacements_ = blob.substr(sizeof(trie_bytes) + trie_bytes);
  if (find_invalid_utf8(replacements_))
    input_error(where, "the normaliser's character map is damaged: not UTF-8");
}

std::string Charsmap::normalize(std::string_view text) const {
  if (units_.empty()) return std::string(text);
  std::string result;
  result.reserve(text.size());
  for_each_grapheme(text, [&](std::string_view grapheme) {
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto whole = replacement(grapheme)) {
        result += *whole;
        return;
      }
    }
    for_each_character(
        grapheme, [&](char32_t, std::string_view bytes) { result += replacement(bytes).value_or(bytes); });
  });
  return result;
}

std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  uint32_t node = offset(units_[0]);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte == 0) break;
    node ^= byte;
    // A damaged trie may point anywhere.
    if (node >= units_.size() || label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size() || value(units_[node]) > replacements_.size()) break;
    const std::string_view rest = std::string_view(replacements_).substr(value(units_[node]));
    if (!rest.empty() && is_continuation(rest[0])) break;  // the middle of a character
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

}  // namespace tessera::text
