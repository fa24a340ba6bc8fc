// SentencePiece's precompiled normalisation rules, applied as Hugging Face's tokenizers applies them.
// Format: a 32-bit length (little endian), a double-array trie of that many bytes (the darts-clone layout,
// 32-bit units) from source strings to offsets, then the replacements, each ended by a zero byte.
// https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class Charsmap {
 public:
  // Without rules: normalize() changes nothing.
  Charsmap() = default;
  // Throws Error(kInput) with `where` when `blob` is not such a map.
  Charsmap(std::string_view blob, const std::string& where);

  // `text` (well-formed UTF-8) grapheme by grapheme: a grapheme of fewer than six bytes that starts with a
  // source string becomes, as a whole, that string's replacement (the shortest source string counts); else
  // each of its characters is treated so. SentencePiece itself takes the longest match and keeps what follows
  // it; a checkpoint's ids are those of transformers.
  std::string normalize(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace tessera::text
