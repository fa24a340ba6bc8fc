// What tokenizers and prompt cleaning need of Unicode, on UTF-8 text. Character properties and case mappings
// are ICU's.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tessera::text {

// Throws Error(kUsage) with the position of the first bad byte.
void require_utf8(std::string_view text, const std::string& where);

// The functions below take well-formed UTF-8.

// Bytes of the character that starts with `first`.
size_t character_length(char first);

// Of a text that is not empty.
char32_t first_character(std::string_view text);
char32_t last_character(std::string_view text);

// Unicode's property White_Space.
bool is_white_space(char32_t character);

// What the class \w of regular expressions has (Unicode technical standard 18, annex C).
bool is_word_character(char32_t character);

// Bytes of white space at the beginning and at the end.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

// Calls `visit` with each character's code point and its bytes, in order.
void for_each_character(std::string_view text,
                        const std::function<void(char32_t character, std::string_view bytes)>& visit);

// Calls `visit` with each extended grapheme cluster (Unicode annex 29), in order.
void for_each_grapheme(std::string_view text, const std::function<void(std::string_view grapheme)>& visit);

// A prompt as diffusers' PixArt pipelines hand it to the tokenizer when caption cleaning is off: lower-cased,
// then stripped of white space at both ends, both as Python's str.lower() and str.strip() do. Throws
// Error(kUsage) when `prompt` is not UTF-8.
std::string clean_prompt(std::string_view prompt);

}  // namespace tessera::text
