// Functions of UTF-8 text for tokenizers and prompt cleaning. Character properties and case mappings are
// ICU's.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// Throws Error(kUsage) with the position of the first bad byte.
void require_utf8(std::string_view text, const std::string& where);

// The functions below take well-formed UTF-8.

// The number of bytes of a character whose first byte is `first`.
size_t character_length(char first);

// `text` must not be empty.
char32_t first_character(std::string_view text);
char32_t last_character(std::string_view text);

// The Unicode property White_Space.
bool is_white_space(char32_t character);

// The class \w of regular expressions (Unicode technical standard 18, annex C).
bool is_word_character(char32_t character);

// The number of bytes of white space at the beginning and at the end.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

// Calls `visit` with each character's code point and its bytes, in order.
void for_each_character(std::string_view text,
                        const std::function<void(char32_t character, std::string_view bytes)>& visit);

// Calls `visit` with each extended grapheme cluster (Unicode annex 29), in order.
void for_each_grapheme(std::string_view text, const std::function<void(std::string_view grapheme)>& visit);

// Removes what Python's str.strip() removes at both ends.
std::string stripped(std::string_view text);

// Returns what diffusers' PixArt pipelines encode if they do not clean captions: `prompt` in lower case, then
// without white space at both ends, as by Python's str.lower() and str.strip(). Throws Error(kUsage) if
// `prompt` is not UTF-8.
std::string lower_and_strip(std::string_view prompt);

// The Unicode versions of Hugging Face's tokenizers. Their parts use different versions, which affect the ids
// of some texts: Unicode 9 in NFC (the crate unicode-normalization-alignments), 16 in patterns (Oniguruma
// 6.9.10), 17 in lower case (Rust 1.92). They are derived here from ICU's version, which may be older or
// newer.

// Normalization form C of well-formed UTF-8. Characters that Unicode 9 had not assigned are left unchanged.
std::string to_nfc(std::string_view text);

// Lower-cases well-formed UTF-8 character by character: a capital sigma never becomes a final one.
std::string to_lower_case(std::string_view text);

// The characters of a general category (L, Lu, Ll, Lt, Lm, Lo, M or N) as a set for ICU's regular
// expressions; nullopt for other categories.
std::optional<std::string> category_set(std::string_view category);

}  // namespace tessera::text
